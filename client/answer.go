package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// longest bounds one request; no batch lives that long.
const longest = 24 * time.Hour

// silence is how long a door may say nothing before it is held to be gone. It gives a sign every 10 s.
const silence = 30 * time.Second

var (
	errSilence = errors.New("no word from the coordinator")
	// errReconnected ends a wait for what may have been sent while there was no connection.
	errReconnected = errors.New("the connection was lost meanwhile")
)

// soon is how long a door may take for its answer once the reply itself was seen.
const soon = time.Second

// news is the reply of a batch as the server publishes it when it is stored. Who hears it needs no door.
type news struct {
	arrived chan struct{} // closed when it has
	reply   []byte        // set before that
}

// unheard is for who does not listen.
var unheard = &news{}

// listen waits for the reply of a batch, until stop. A reply to another body than that of the digest is somebody
// else's ("": any will do), and one that is too large for a message has to be fetched.
func (c *Client) listen(key messages.BatchKey, digest string) (n *news, stop func(), err error) {
	n = &news{arrived: make(chan struct{})}
	once := sync.Once{}
	stop, err = c.conn.Subscribe(c.names.Of(messages.VerbReply, key), "", func(m bus.Msg) {
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

// ask makes one request at a door and puts its answer together: events as they come, then a reply, which
// may arrive in chunks, or a state. A reply that is in the news is as good, when the door does not answer soon after it.
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
			var e messages.Event // a waiting one is a sign of life, and nothing to tell
			if each != nil && kind != string(messages.EventWaiting) && json.Unmarshal(m.Data, &e) == nil {
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

// place puts a chunk numbered "2/3" where it belongs.
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

func read(answer []byte) (messages.Reply, error) {
	var state messages.State
	var reply messages.Reply
	if err := json.Unmarshal(answer, &state); err != nil {
		return reply, fmt.Errorf("the answer cannot be read: %w", err)
	}
	switch state.Status {
	case "running":
		return reply, ErrRunning
	case "unknown":
		return reply, ErrUnknown
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return reply, fmt.Errorf("the reply cannot be read: %w", err)
	}
	if reply.Status == messages.Refused && reply.Error != nil {
		return reply, reply.Error
	}
	return reply, nil
}
