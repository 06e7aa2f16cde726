package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// longest is the longest that one request may take. After that time Run sends the request
// again. With the default batch_ttl (1 h) no batch takes so long.
const longest = 24 * time.Hour

// silence is how long a handler may send nothing before it counts as gone. The run handler sends a
// waiting event every 10 s.
const silence = 30 * time.Second

var (
	errSilence = errors.New("no word from the coordinator")
	// errReconnected ends a request if the connection was lost while the request was open.
	// The request or its answer may be lost too.
	errReconnected = errors.New("the connection was lost meanwhile")
)

// soon is how long ask waits for the handler's own answer once the stored reply was seen.
const soon = time.Second

// news holds the published reply of a batch. Each reply is published when it is stored, so the
// caller gets it even if the handler of its request never answers.
type news struct {
	arrived chan struct{} // closed when the reply has arrived
	reply   []byte        // set before arrived is closed
}

// unheard is the news of a caller that does not subscribe to the reply. Its channel arrived
// is nil, so nothing is ever received from it.
var unheard = &news{}

// listen subscribes to the published reply of a batch; stop ends the subscription. A reply
// counts only if it has this digest ("" accepts any digest). A reply that is too large for
// one message is ignored: the caller has to fetch it.
func (c *Client) listen(key wire.BatchKey, digest string) (n *news, stop func(), err error) {
	n = &news{arrived: make(chan struct{})}
	once := sync.Once{}
	stop, err = c.conn.Subscribe(c.names.Of(wire.VerbReply, key), "", func(m bus.Msg) {
		var reply struct {
			Digest string        `json:"digest"`
			Ref    *messages.Ref `json:"ref"`
		}
		if json.Unmarshal(m.Data, &reply) != nil || reply.Ref != nil || digest != "" && reply.Digest != digest {
			return
		}
		once.Do(func() {
			n.reply = m.Data
			close(n.arrived)
		})
	})
	return n, stop, err
}

// ask sends one request to a handler and reads the answer: first events, then either a reply,
// possibly in chunks, or a state. If n receives the stored reply and the handler does not
// answer within soon, ask returns the stored reply.
func (c *Client) ask(ctx context.Context, subject string, n *news, h bus.Header, body []byte, each func(messages.Event)) (messages.Reply, error) {
	var parts answerParts
	var problem error
	listening, cancel := context.WithDeadline(ctx, time.Now().Add(longest))
	defer cancel()
	listening, gone := context.WithCancelCause(listening)
	defer gone(nil)
	quiet := time.AfterFunc(silence, func() { gone(errSilence) })
	defer quiet.Stop()
	defer c.conn.OnReconnect(func() { gone(errReconnected) })()
	go func() {
		select {
		case <-n.arrived:
			time.AfterFunc(soon, func() { gone(errSilence) })
		case <-listening.Done():
		}
	}()
	err := c.conn.Stream(listening, subject, h, body, func(m bus.Msg) (more bool) {
		quiet.Reset(silence)
		if kind := m.Header.Get(messages.EventHeader); kind != "" {
			// A waiting event only shows that the handler still works; the caller does not get it.
			var e messages.Event
			if kind != string(messages.EventWaiting) && json.Unmarshal(m.Data, &e) == nil {
				each(e)
			}
			return true
		}
		more, problem = parts.add(m)
		return more
	})
	if err == nil {
		err = problem
	}
	if err == nil {
		return read(parts.whole())
	}
	select {
	case <-n.arrived:
		return read(n.reply)
	default:
		return messages.Reply{}, err
	}
}

// request sends one request to a handler and decodes the JSON answer, which may come in chunks. It
// waits at most 10 s and does not retry.
func request[T any](ctx context.Context, c *Client, subject string, body []byte) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	asking, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	defer c.conn.OnReconnect(func() { lost(errReconnected) })()
	var parts answerParts
	var problem error
	err = c.conn.Stream(asking, subject, nil, body, func(m bus.Msg) (more bool) {
		more, problem = parts.add(m)
		return more
	})
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		return answer, ErrNoFleet
	case err == nil:
		err = problem
	}
	if err == nil {
		err = json.Unmarshal(parts.whole(), &answer)
	}
	return answer, err
}

// answerParts is a partly received answer: one message, or numbered chunks.
type answerParts [][]byte

// add takes a message of the answer and reports whether more messages follow.
func (p *answerParts) add(m bus.Msg) (more bool, err error) {
	numbered := m.Header.Get(messages.ChunkHeader)
	if numbered == "" {
		*p = [][]byte{m.Data}
		return false, nil
	}
	if *p, err = place(*p, numbered, m.Data); err != nil {
		return false, err
	}
	return slices.ContainsFunc(*p, func(part []byte) bool { return part == nil }), nil
}

func (p answerParts) whole() []byte { return bytes.Join(p, nil) }

// place stores a chunk that is numbered "2/3" (from 1, at most 65,536 chunks) in its slot.
func place(chunks [][]byte, numbered string, part []byte) ([][]byte, error) {
	i, n, _ := strings.Cut(numbered, "/")
	index, err1 := strconv.Atoi(i)
	count, err2 := strconv.Atoi(n)
	if err1 != nil || err2 != nil || index < 1 || index > count || count > 1<<16 || chunks != nil && len(chunks) != count {
		return nil, fmt.Errorf("a part of the answer is numbered %.20q", numbered)
	}
	if chunks == nil {
		chunks = make([][]byte, count)
	}
	chunks[index-1] = part
	return chunks, nil
}

// read decodes an answer. If the answer is a state instead of a reply, the error is
// ErrRunning or ErrUnknown. A refused reply is returned with its *messages.Refusal.
func read(answer []byte) (messages.Reply, error) {
	var state struct {
		Status string `json:"status"`
	}
	var reply messages.Reply
	if err := json.Unmarshal(answer, &state); err != nil {
		return reply, fmt.Errorf("the answer cannot be read: %w", err)
	}
	switch state.Status {
	case messages.BatchRunning:
		var running messages.State
		if err := json.Unmarshal(answer, &running); err != nil {
			return reply, fmt.Errorf("the answer cannot be read: %w", err)
		}
		reply.Results = running.Results
		return reply, ErrRunning
	case messages.BatchUnknown:
		return reply, ErrUnknown
	}
	decoder := json.NewDecoder(bytes.NewReader(answer))
	decoder.UseNumber() // the details of an error keep their digits
	if err := decoder.Decode(&reply); err != nil {
		return reply, fmt.Errorf("the reply cannot be read: %w", err)
	}
	if reply.Append == nil { // stored by an older coordinator
		reply = reply.WithAppend()
	}
	if reply.Status == messages.ReplyRefused && reply.Error != nil {
		return reply, reply.Error
	}
	return reply, nil
}
