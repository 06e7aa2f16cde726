package packages

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	connection "github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// line is a line of the shared table of client behaviour: a method, the exchanges that it
// makes, and its outcome. The table has the exchanges over HTTP, and a player turns them into
// NATS messages.
type line struct {
	Name     string                     `json:"name"`
	Do       string                     `json:"do"`
	Args     map[string]json.RawMessage `json:"args"`
	Listen   bool                       `json:"listen,omitempty"`
	Patience *int                       `json:"patience_ms,omitempty"`
	HTTP     [][2]exchange              `json:"http"`
	Returns  any                        `json:"returns"`
	Throws   map[string]any             `json:"throws"`
	Events   []any                      `json:"events"`
}

// exchange is a request or its answer.
type exchange struct {
	Method string         `json:"method"`
	Path   string         `json:"path"`
	Status int            `json:"status"`
	Text   string         `json:"text"`
	Cut    bool           `json:"cut"`
	Body   map[string]any `json:"body"`
	Events []struct {
		Type string         `json:"type"`
		Data map[string]any `json:"data"`
	} `json:"events"`
}

// ofHTTP lists the lines about HTTP alone: tokens, proxies, streams that resume, and a server
// that loses the fleet while it answers.
var ofHTTP = []string{
	"run: an answer that ends in its middle is asked for again",
	"run: no coordinator, and then one",
	"run: the page of a proxy is tried again",
	"run: a body that did not arrive is sent again",
	"run: a wrong token is not tried again",
	"run: a server that stops in the middle of a stream",
	"follow: it goes on after the last event that came",
	"follow: all sessions",
	"follow: a token that has expired",
}

func table(t *testing.T, without ...string) (lines []line) {
	t.Helper()
	for text := range bytes.Lines(read(t, "../../../clients/testdata/client.jsonl")) {
		var l line
		must(t, json.Unmarshal(text, &l))
		if i := slices.Index(without, l.Name); i >= 0 {
			without = slices.Delete(slices.Clone(without), i, i+1)
			continue
		}
		lines = append(lines, l)
	}
	if len(without) > 0 {
		t.Errorf("the table has none of %q", without)
	}
	return lines
}

// player plays the fleet for one line of the table. It has a subject prefix and a connection
// of its own.
type player struct {
	line
	prefix string
	conn   *bus.Conn
	url    string

	mu    sync.Mutex
	next  int
	wrong []string
}

// play starts a player for each line. A client reaches a player at its URL, under its prefix.
func play(t *testing.T, lines []line) (players []*player) {
	t.Helper()
	srv := natstest.Server(t, natstest.Listening)
	conn, err := bus.Connect(t.Context(), bus.To(connection.Options{URL: srv.URL()}, "player"))
	must(t, err)
	t.Cleanup(conn.Close)
	for i, l := range lines {
		p := &player{line: l, prefix: fmt.Sprint("line", i), conn: conn, url: newLink(t, srv.URL())}
		players = append(players, p)
		if code(l.HTTP[0][1]) == "no_fleet" {
			p.next = len(l.HTTP) // this fleet does not answer
			continue
		}
		_, err := conn.Subscribe(p.prefix+".>", "", p.answer)
		must(t, err)
	}
	must(t, conn.Flush(t.Context()))
	return players
}

func code(answer exchange) string {
	of, _ := answer.Body["error"].(map[string]any)
	text, _ := of["code"].(string)
	return text
}

// answer checks a request against the next exchange and sends the answer.
func (p *player) answer(m bus.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == len(p.HTTP) {
		p.wrong = append(p.wrong, "another request came: "+m.Subject)
		return
	}
	want, answer := p.HTTP[p.next][0], p.HTTP[p.next][1]
	p.next++
	subject, body := onNATS(p.prefix, want)
	var got map[string]any
	_ = json.Unmarshal(m.Data, &got)
	if diff := cmp.Diff(subject, m.Subject); diff != "" {
		p.wrong = append(p.wrong, diff)
	}
	if diff := cmp.Diff(body, got); want.Body != nil && diff != "" {
		p.wrong = append(p.wrong, diff)
	}
	say := func(kind string, data any) {
		var header bus.Header
		if kind != "" {
			header = bus.Header{messages.EventHeader: {kind}}
		}
		_ = p.conn.Respond(m, header, rawjson.MustMarshal(data))
	}
	for _, e := range answer.Events {
		switch e.Type {
		case "reply":
			say("", e.Data)
		case "error":
			say("", refusal(e.Data))
		default:
			say(e.Type, e.Data)
		}
	}
	unended := len(answer.Events) > 0 && !slices.Contains([]string{"reply", "error"}, answer.Events[len(answer.Events)-1].Type)
	switch {
	case unended || answer.Status == 0:
		_ = p.conn.Respond(m, nil, []byte(cut))
	case answer.Events != nil:
	case answer.Status == 202 && p.Do != "get": // on NATS one request waits for both answers
		say(string(messages.EventWaiting), struct{}{})
		p.next++
		say("", p.shown(p.HTTP[p.next-1][1].Body))
	case answer.Status == 404:
		say("", map[string]any{"status": "unknown"})
	case code(answer) != "" && p.Do != "call":
		say("", refusal(answer.Body))
	default:
		say("", p.shown(answer.Body))
	}
}

// shown returns an answer in the form of a coordinator, where the result of a call is in the
// reply of a batch.
func (p *player) shown(body map[string]any) any {
	if p.Do != "call" {
		return body
	}
	result, shown := map[string]any{}, map[string]any{"id": body["call_id"], "name": body["tool"]}
	for name, value := range body {
		if name == "output" {
			shown[name] = value
		} else {
			result[name] = value
		}
	}
	reinjection := map[string]any{"results": []any{shown}}
	return map[string]any{"status": "completed", "results": []any{result}, "reinjection": reinjection, "append": []any{reinjection}}
}

// refusal returns an error of the HTTP API in the form of a coordinator.
func refusal(body map[string]any) any {
	of, _ := body["error"].(map[string]any)
	said := map[string]any{"status": "refused"}
	if reply, ok := body["reply"].(map[string]any); ok {
		said = reply
	}
	about := map[string]any{"class": of["code"], "message": of["message"]}
	if after, ok := of["retry_after_ms"]; ok {
		about["retry_after_ms"] = after
	}
	said["error"] = about
	return said
}

// onNATS returns the subject and the body of a NATS request that corresponds to an HTTP
// request.
func onNATS(prefix string, e exchange) (subject string, body map[string]any) {
	path, _, _ := strings.Cut(e.Path, "?")
	if path == "/v1/tools" {
		return prefix + ".tools._", nil
	}
	parts := strings.Split(strings.TrimPrefix(path, "/v1/sessions/"), "/")
	for i, part := range parts {
		parts[i], _ = url.PathUnescape(part)
	}
	session := messages.Token(parts[0])
	body = map[string]any{"v": 1.0}
	for name, value := range e.Body {
		body[name] = value
	}
	if len(parts) == 2 {
		return prefix + ".control._." + session, body
	}
	verb := "run"
	if e.Method == "GET" {
		verb = "get"
	}
	body["session"], body["id"] = parts[0], parts[2]
	if parts[1] == "calls" {
		call := map[string]any{"id": parts[2], "name": body["name"], "input": body["input"]}
		delete(body, "name")
		delete(body, "input")
		body["provider"], body["message"] = "canonical", map[string]any{"calls": []any{call}}
	}
	return prefix + "." + verb + "._." + session + "." + messages.Token(parts[2]), body
}

// judge compares the outcome of a line with the table.
func (p *player) judge(t *testing.T, returns any, throws map[string]any, events []any) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, wrong := range p.wrong {
		t.Error(wrong)
	}
	if p.next != len(p.HTTP) {
		t.Errorf("%d requests came, want %d", p.next, len(p.HTTP))
	}
	for name, want := range p.Throws {
		if diff := cmp.Diff(want, throws[name]); diff != "" {
			t.Errorf("the error's %s: %s", name, diff)
		}
	}
	if p.Throws == nil && throws != nil {
		t.Errorf("got the error %v", throws)
	}
	if diff := cmp.Diff(p.Returns, returns); p.Throws == nil && diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(p.Events, events); p.Listen && len(p.Events)+len(events) > 0 && diff != "" {
		t.Error(diff)
	}
}

// The client for TypeScript behaves over NATS as it does over HTTP.
func TestTableOverNATS(t *testing.T) {
	dir := withNATS(t, installed(t))
	players := play(t, table(t, ofHTTP...))
	var input, output bytes.Buffer
	for _, p := range players {
		text := rawjson.MustMarshal(struct {
			line
			URL    string `json:"url"`
			Prefix string `json:"prefix"`
		}{p.line, p.url, p.prefix})
		input.Write(append(text, '\n'))
	}
	cmd := exec.CommandContext(t.Context(), node(t), filepath.Join(dir, "table.mjs"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &input, &output, t.Output()
	must(t, cmd.Run())
	came := map[string]struct {
		Returns any
		Throws  map[string]any
		Events  []any
	}{}
	for text := range bytes.Lines(output.Bytes()) {
		var name struct{ Name string }
		must(t, json.Unmarshal(text, &name))
		of := came[name.Name]
		must(t, json.Unmarshal(text, &of))
		came[name.Name] = of
	}
	for _, p := range players {
		t.Run(p.Name, func(t *testing.T) {
			of, ok := came[p.Name]
			if !ok {
				t.Fatal("nothing came of it")
			}
			p.judge(t, of.Returns, of.Throws, of.Events)
		})
	}
}

// ofPackages lists the lines that do not hold for the client for Go. That client leaves it to
// its caller to repeat Tools and controls, which fail after 10 s without an answer. Its Run
// waits without a limit.
var ofPackages = []string{
	"run: nobody is there",
	"run: too large",
	"tools: it is tried again",
	"steer: it is never said twice",
	"abort: a batch, tried again",
}

// The client for Go behaves as the clients of our packages do.
func TestTableInGo(t *testing.T) {
	players := play(t, table(t, append(ofPackages, ofHTTP...)...))
	type outcome struct {
		returns any
		err     error
		events  []any
	}
	came := make([]outcome, len(players))
	var all sync.WaitGroup
	for i, p := range players {
		all.Go(func() {
			of := &came[i]
			c, err := client.Connect(t.Context(), connection.Options{URL: p.url, Prefix: p.prefix})
			if err != nil {
				of.err = err
				return
			}
			defer c.Close()
			of.returns, of.err = p.perform(t.Context(), c, func(e messages.Event) { of.events = append(of.events, plain(e)) })
		})
	}
	all.Wait()
	for i, p := range players {
		t.Run(p.Name, func(t *testing.T) {
			for i := range p.Events { // adds the members that the table leaves out
				var e messages.Event
				must(t, json.Unmarshal(rawjson.MustMarshal(p.Events[i]), &e))
				p.Events[i] = plain(e)
			}
			of := came[i]
			p.judge(t, plain(of.returns), thrown(of.err, of.returns), of.events)
		})
	}
}

// perform calls the method of a line.
func (p *player) perform(ctx context.Context, c *client.Client, each func(messages.Event)) (any, error) {
	var a struct {
		Session   messages.SessionID
		ID        messages.BatchID
		Provider  messages.Provider
		Message   json.RawMessage
		Name      string
		Input     json.RawMessage
		TimeoutMS int64 `json:"timeout_ms"`
		Round     int
		Labels    map[string]string
		Catalogue string
		Names     []string
		Strict    string
		Cache     bool
		Results   string
		When      messages.SteerWhen
		Reason    string
	}
	if err := json.Unmarshal(rawjson.MustMarshal(p.Args), &a); err != nil {
		return nil, err
	}
	why := client.Reason{Text: a.Reason}
	switch p.Do {
	case "run":
		batch := messages.Batch{ID: a.ID, Session: a.Session, Provider: a.Provider, Message: a.Message, TimeoutMS: a.TimeoutMS, Round: a.Round, Labels: a.Labels, Catalogue: a.Catalogue}
		return c.Run(ctx, batch, client.OnEvent(each))
	case "call":
		call := map[string]any{"id": a.ID, "name": a.Name, "input": a.Input}
		message := rawjson.MustMarshal(map[string]any{"calls": []any{call}})
		reply, err := c.Run(ctx, messages.Batch{ID: a.ID, Session: a.Session, Provider: messages.Canonical, Message: message, TimeoutMS: a.TimeoutMS})
		if err != nil {
			return nil, err
		}
		return reply.Single()
	case "tools", "catalogue":
		list, err := c.Tools(ctx, messages.GetTools{Provider: a.Provider, Names: a.Names, Strict: a.Strict, Cache: a.Cache})
		if p.Do == "tools" {
			return list.Tools, err
		}
		return list, err
	case "get":
		var options []client.GetOption
		if a.Results == "full" {
			options = append(options, client.FullResults())
		}
		reply, err := c.Get(ctx, a.Session, a.ID, options...)
		if errors.Is(err, client.ErrRunning) {
			return messages.State{Status: "running", Results: reply.Results}, nil
		}
		return reply, err
	case "steer":
		_, err := c.Steer(ctx, a.Session, a.Message, a.When, why)
		return nil, err
	case "abort":
		if a.ID == "" {
			_, err := c.AbortSession(ctx, a.Session, why)
			return nil, err
		}
		_, err := c.Abort(ctx, a.Session, a.ID, why)
		return nil, err
	}
	return nil, fmt.Errorf("the table does %q", p.Do)
}

// thrown describes an error in the form of the table.
func thrown(err error, returned any) map[string]any {
	var refusal *messages.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		statuses := map[messages.Class]float64{messages.ClassBatchConflict: 409, messages.ClassInternal: 500}
		status, kind := statuses[refusal.Class], "Refused"
		switch status {
		case 0:
			status = 422
		case 500:
			kind = "FleetError"
		}
		return map[string]any{"kind": kind, "code": string(refusal.Class), "status": status, "reply": plain(returned)}
	case errors.Is(err, client.ErrNoFleet):
		return map[string]any{"kind": "Unavailable", "code": "no_fleet", "status": 503.0}
	case errors.Is(err, client.ErrUnknown):
		return map[string]any{"kind": "FleetError", "code": "unknown_batch", "status": 404.0}
	}
	return map[string]any{"kind": "Unavailable", "code": "no_connection", "status": 0.0}
}

// plain returns a value as decoded JSON.
func plain(value any) (plain any) {
	_ = json.Unmarshal(rawjson.MustMarshal(value), &plain)
	return plain
}

// cut is a message that no client receives: the link between client and server ends there.
const cut = "the link ends here"

// newLink returns the address of a link to a server.
func newLink(t *testing.T, server string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(server, "nats://"))
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(far, near)
				_, _ = far.Close(), near.Close()
			}()
			go func() {
				// The client reads everything that came before the cut, and then the end.
				defer near.(*net.TCPConn).CloseWrite()
				lines := bufio.NewReader(far)
				for {
					text, err := lines.ReadBytes('\n')
					if err != nil || bytes.HasPrefix(text, []byte(cut)) {
						return
					}
					if _, err := near.Write(text); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "nats://" + listener.Addr().String()
}
