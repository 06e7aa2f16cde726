package mcptool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/outbound"
	"github.com/toolfleet/toolfleet/worker/tool/process"
)

const (
	// startTime limits the start of a server and the reading of its list of tools.
	startTime = 60 * time.Second
	// closeGrace is how long a program may take to end after its stdin was closed.
	closeGrace = time.Second
	// protocol is the version of MCP that programs are offered. Every server understands it,
	// so the client need not try another version first.
	protocol   = "2025-11-25"
	maxStderr  = 8 << 10
	maxErrText = 1000
)

// session is a running server: a process, or a session of MCP with a service.
type session struct {
	client *mcp.ClientSession
	calls  *calls
	grace  time.Duration // how long a call that was cut off may take to end
	// stop kills the process. Nil for a service.
	stop context.CancelCauseFunc
	// ended is closed when the process has ended. From then on, how says how it ended, and
	// words is the end of its stderr.
	ended   chan struct{}
	how     string
	words   string
	digests atomic.Pointer[map[string]string] // digests of the definitions, by name
	listed  atomic.Pointer[List]              // what the server listed last
	stale   atomic.Bool                       // the server's list has changed since then
	listing chan struct{}                     // a semaphore of one; the holder may read the list
}

// start starts a session and reads its list.
func (c Config) start(ctx context.Context) (*session, List, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("it was not ready in %v", startTime))
	defer cancel()
	s := &session{calls: newCalls(), grace: cmp.Or(c.CancelGrace, defaultCancelGrace), ended: make(chan struct{}), listing: make(chan struct{}, 1)}
	transport, options, err := c.transport(s)
	if err != nil {
		return nil, List{}, err
	}
	s.client, err = c.client(s).Connect(ctx, transport, options)
	err = short(err)
	var listed List
	if err == nil {
		listed, err = list(ctx, s.client, s.calls.onlyAsTask)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		s.kill(err)
		if s.stop != nil {
			<-s.ended
			err = fmt.Errorf("%w (%s)", err, s.how)
			if note := c.Sandbox.Note(s.how + "\n" + s.words); note != "" {
				err = fmt.Errorf("%w %s", err, note)
			}
			err = c.failed(err, s.how, s.words)
		}
		return nil, List{}, err
	}
	s.accept(listed)
	return s, listed, nil
}

// accept stores a list of the server and the digests of its definitions.
func (s *session) accept(listed List) {
	digests := map[string]string{}
	for _, d := range listed.Tools {
		digests[d.Name] = d.Digest()
	}
	s.digests.Store(&digests)
	s.listed.Store(&listed)
}

// client returns a client that offers servers no capability: no files, no model, and no person
// to ask.
func (c Config) client(s *session) *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "toolfleet", Version: c.Version}, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { s.stale.Store(true) },
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			s.calls.progress(r.Params)
		},
	})
}

func (c Config) transport(s *session) (mcp.Transport, *mcp.ClientSessionOptions, error) {
	if c.Server.URL != "" {
		client := &http.Client{
			Transport: &headers{outbound.Transport(outbound.Config{Loopback: c.Server.Loopback}), c, s.calls},
			CheckRedirect: func(next *http.Request, before []*http.Request) error {
				if next.URL.Host != before[0].URL.Host || next.URL.Scheme != before[0].URL.Scheme || len(before) > 5 {
					return http.ErrUseLastResponse
				}
				return nil
			},
		}
		return &mcp.StreamableClientTransport{Endpoint: c.Server.URL, HTTPClient: client, MaxEventSize: maxMessage}, nil, nil
	}
	transport, err := c.startProcess(s)
	return transport, &mcp.ClientSessionOptions{ProtocolVersion: protocol}, err
}

// startProcess starts the program of a server.
func (c Config) startProcess(s *session) (mcp.Transport, error) {
	program, err := find(c.Server.Command[0], c.Dir)
	if err != nil {
		return nil, &startError{err, Problem{Advice: c.otherwise()}}
	}
	env, err := c.environ()
	if err != nil {
		return nil, err
	}
	stdin, toServer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(context.Background())
	s.stop = stop
	out := newPipe(toServer)
	out.stray = func(line []byte) { c.log("the server printed a line that is no message", "line", clip(line)) }
	out.tooLong = func() { stop(fmt.Errorf("it sent a message of more than %d bytes", maxMessage)) }
	printed := process.NewLines(func(text string) { c.log("the server says", "text", clip([]byte(text))) })
	go func() {
		result, err := process.Run(ctx, process.Command{
			Args: append([]string{program}, c.Server.Command[1:]...), Dir: c.Dir, Env: env, StdinFile: stdin,
			Limit: 1, LimitStderr: maxStderr, TailOnly: true, OnStdout: out.add, OnStderr: printed.Add,
			Sandbox: c.Sandbox, Stays: true,
		})
		printed.Flush()
		s.how, s.words = result.Status(), clean(string(bytes.TrimSpace(result.Stderr.Bytes())))
		if err != nil {
			s.how = err.Error()
		}
		_ = out.Close()
		close(s.ended)
	}()
	return &tap{out, s.calls}, nil
}

// find returns the full path of a program. A name with a slash is relative to dir. Any other
// name is looked up in PATH.
func find(name, dir string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) && !filepath.IsAbs(name) {
		var err error
		if name, err = filepath.Abs(filepath.Join(dir, name)); err != nil { // a join alone would lose ./
			return "", fmt.Errorf("program %s: %w", name, err)
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		var lookup *exec.Error
		if errors.As(err, &lookup) {
			err = lookup.Err
		}
		return "", fmt.Errorf("program %s: %w", name, err)
	}
	return filepath.Abs(path)
}

// environ returns the environment of a process. A value may name a secret.
func (c Config) environ() ([]string, error) {
	env := process.Inherited(c.Server.Env)
	for _, v := range c.Server.Values {
		text, err := c.value(v)
		if err != nil {
			return nil, err
		}
		env = append(env, v.Name+"="+text)
	}
	return env, nil
}

// clip returns the end of what a server printed, for people.
func clip(text []byte) string {
	return clean(string(text[max(0, len(text)-maxErrText):]))
}

// shortError is an error that may quote a server. Its text is clean, and has at most maxErrText
// bytes.
type shortError struct{ error }

func (e *shortError) Unwrap() error { return e.error }

func (e *shortError) Error() string {
	text := clean(e.error.Error())
	if len(text) > maxErrText {
		text = strings.ToValidUTF8(text[:maxErrText], "") + " [...]"
	}
	return text
}

// short returns err with a short and clean text; nil stays nil.
func short(err error) error {
	if err == nil {
		return nil
	}
	return &shortError{err}
}

// kill ends the session at once.
func (s *session) kill(why error) {
	if s.stop != nil {
		s.stop(why)
		return
	}
	if s.client != nil {
		go s.client.Close() // in the background: Close waits for the service
	}
}

// close ends the session. A program gets closeGrace to end by itself.
func (s *session) close() {
	if s.stop == nil {
		s.kill(nil)
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = s.client.Close()
	}()
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-timer.C:
	}
	s.stop(errors.New("the worker ends"))
	<-s.ended
	<-closed
}

// dead reports whether the process has ended.
func (s *session) dead() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// digest returns the digest of a definition in the newest list of the server.
func (s *session) digest(ctx context.Context, name string) (string, error) {
	if err := s.refresh(ctx); err != nil {
		return "", err
	}
	return (*s.digests.Load())[name], nil
}

// refresh reads the server's list if it has changed. One caller reads it and the others wait.
func (s *session) refresh(ctx context.Context) error {
	select {
	case s.listing <- struct{}{}:
		defer func() { <-s.listing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !s.stale.Swap(false) {
		return nil
	}
	listed, err := list(ctx, s.client, s.calls.onlyAsTask)
	if err != nil {
		s.stale.Store(true)
		return err
	}
	s.accept(listed)
	return nil
}

// call runs a tool. If ctx ends first, call tells the server, and kills a program that does
// not answer in time. After call has returned, the tool does not run in a program any more. A
// service may still run it.
func (s *session) call(ctx context.Context, params *mcp.CallToolParams, report func(messages.Progress)) (*mcp.CallToolResult, error) {
	running := s.calls.begin(report)
	defer s.calls.end(running)
	params.SetProgressToken(running.token)
	over := make(chan struct{})
	undo := context.AfterFunc(ctx, func() {
		defer close(over)
		if s.stop != nil {
			s.cutOff(running)
		}
	})
	result, err := s.client.CallTool(ctx, params)
	if err == nil && result.StructuredContent != nil {
		running.restore(result)
	}
	switch {
	case !undo():
		<-over
	case err == nil || ctx.Err() == nil:
		return result, err
	case s.stop != nil: // the client may notice the end of ctx before the function above
		s.cutOff(running)
	}
	if err != nil {
		return nil, context.Cause(ctx)
	}
	return result, err
}

// cutOff waits until a call that was cut off has ended. If that takes too long, it kills the
// process.
func (s *session) cutOff(running *runningCall) {
	timer := time.NewTimer(s.grace)
	defer timer.Stop()
	select {
	case <-running.answered:
		return
	case <-s.ended:
		return
	case <-timer.C:
	}
	s.stop(errors.New("a call was cut off, and the server did not end it"))
	<-s.ended
}

// headers adds the headers of a server's entry to each request, and shows calls what is sent
// and answered.
type headers struct {
	next  http.RoundTripper
	cfg   Config
	calls *calls
}

// RoundTrip sends a request with the headers of the server's entry.
func (h *headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for _, v := range h.cfg.Server.Values {
		text, err := h.cfg.value(v)
		if err != nil {
			return nil, err
		}
		r.Header.Set(v.Name, text)
	}
	h.calls.noteRequest(r)
	response, err := h.next.RoundTrip(r)
	if err == nil {
		h.calls.noteAnswers(response)
	}
	if p, ok := r.Context().Value(postedKey{}).(*posted); ok && err == nil && r.Method == http.MethodPost {
		p.first.CompareAndSwap(0, int64(response.StatusCode))
	}
	return response, err
}
