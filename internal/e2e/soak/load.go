package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// load runs agents that submit batches and wait for their replies. Each agent has a session of
// its own.
type load struct {
	client *client.Client
	conn   *bus.Conn
	depth  int // how many batches of a session may be open at once
	shape  Shape
	calm   bool
	think  time.Duration // longest pause between two batches of a session
	people map[string]approval.Key
	// twoBuilds means that the member append of replies is ignored, because the old build does
	// not write it.
	twoBuilds bool

	mu      sync.Mutex
	batches []*Batch          // guarded by mu, with their fields
	arrived []time.Time       // when each reply arrived; guarded by mu
	copies  map[string]copies // bodies seen on the reply subject, by batch; guarded by mu
	// unknowns counts the answers that say that an acknowledged batch is unknown. resubmitted
	// counts the batches that were submitted again. Both are guarded by mu.
	unknowns, resubmitted int
	decisions             map[string][]Decision // by call; guarded by mu
}

type copies map[string]bool

// listen records every reply that the server publishes.
func (l *load) listen() (stop func(), err error) {
	names := l.conn.Names()
	return l.conn.Subscribe(names.All(wire.VerbReply), "", func(m bus.Msg) {
		_, key, err := names.Batch(m.Subject)
		if err != nil {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.onMessage(key.Batch, m.Data)
	})
}

// onMessage records the body of a reply. The caller holds mu.
func (l *load) onMessage(batch string, body []byte) {
	if l.copies[batch] == nil {
		l.copies[batch] = copies{}
	}
	if members, err := rawjson.Members(body); l.twoBuilds && err == nil {
		delete(members, "append")
		body = rawjson.JoinMembers(members)
	}
	l.copies[batch][messages.Digest(body)] = true
}

// agent submits batches until submitting ends. It returns when all of them have a reply, or
// when ctx ends.
func (l *load) agent(submitting, ctx context.Context, session string, rng *rand.Rand) {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	slots := make(chan struct{}, l.depth)
	for n := 1; ; n++ {
		select {
		case slots <- struct{}{}:
		case <-submitting.Done():
		}
		if submitting.Err() != nil {
			return
		}
		b := l.shape(session, n, rng)
		if !l.submit(ctx, b) {
			return
		}
		if abort, after := !l.calm && rng.IntN(30) == 0, time.Duration(rng.IntN(500))*time.Millisecond; abort {
			b.Abort = time.Now()
			waiting.Go(func() { l.abort(ctx, b, after) })
		}
		again := !l.calm && rng.IntN(15) == 0
		waiting.Go(func() {
			defer func() { <-slots }()
			l.await(ctx, b)
			if again && !b.Replied.IsZero() { // like an agent that lost its state
				l.resubmit(ctx, b)
			}
		})
		select {
		case <-submitting.Done():
		case <-time.After(time.Duration(rng.Int64N(int64(l.think)))):
		}
	}
}

// Shape makes the nth batch of a session.
type Shape func(session string, n int, rng *rand.Rand) *Batch

// mixed returns a batch of random calls. Most are short, and one in ten is long enough for a
// fault to hit it. Each session alternates between batches of one call, as most SDKs send, and
// larger batches.
func mixed(session string, n int, rng *rand.Rand) *Batch {
	b := &Batch{Session: session, ID: fmt.Sprintf("%s-%d", session, n), Claims: map[int][]Claim{}}
	names := []string{"echo", "nap", "look", "look", "put", "put", "book", "book", "book"}
	if rng.IntN(4) == 0 {
		names = append(names, "refund", "refund", "transfer")
	}
	calls := 1 + rng.IntN(5)
	if n/10%2 == 1 {
		calls = 1
	}
	for i := range calls {
		in := Input{MS: rng.IntN(40)}
		if rng.IntN(10) == 0 {
			in.MS = 200 + rng.IntN(1500)
		}
		name := names[rng.IntN(len(names))]
		in.Fail = Tools[name].Ledger && rng.IntN(20) == 0
		in.Flaky = name == "put" && rng.IntN(10) == 0
		b.Calls = append(b.Calls, Call{ID: fmt.Sprintf("call_%d", i), Tool: name, Input: in})
	}
	return b
}

// message returns the batch in the form that is sent.
func (b *Batch) message() messages.Batch {
	type call struct {
		ID    string `json:"id"`
		Name  string `json:"name"`
		Input Input  `json:"input"`
	}
	var calls []call
	for _, c := range b.Calls {
		calls = append(calls, call{c.ID, c.Tool, c.Input})
	}
	return messages.Batch{
		V: messages.Version, ID: messages.BatchID(b.ID), Session: messages.SessionID(b.Session), Provider: messages.Canonical,
		Message: rawjson.MustMarshal(map[string]any{"calls": calls}),
	}
}

// submit publishes a batch and records it. It returns false if ctx ends first.
func (l *load) submit(ctx context.Context, b *Batch) bool {
	m := b.message()
	b.Digest, b.Sent = messages.Digest(rawjson.MustMarshal(m)), time.Now()
	if !l.publish(ctx, m) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b.Acked = time.Now()
	l.batches = append(l.batches, b)
	return true
}

// abort aborts a batch after a pause. The request may come too late and be refused.
func (l *load) abort(ctx context.Context, b *Batch, after time.Duration) {
	pause(ctx, after)
	_, _ = l.client.Abort(ctx, messages.SessionID(b.Session), messages.BatchID(b.ID), client.Reason{By: "soak"})
}

// resubmit submits a batch again after its reply. The fleet must answer with the same reply
// and run nothing.
func (l *load) resubmit(ctx context.Context, b *Batch) {
	if l.publish(ctx, b.message()) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.resubmitted++
	}
}

// publish publishes a batch again and again until it is acknowledged.
func (l *load) publish(ctx context.Context, m messages.Batch) bool {
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := l.client.Submit(once, m)
		cancel()
		if err == nil {
			return true
		}
		pause(ctx, 100*time.Millisecond)
	}
	return false
}

// await waits for the reply of a batch. A batch that stays unknown for 10 s is lost.
func (l *load) await(ctx context.Context, b *Batch) {
	var unknown time.Time
	for ctx.Err() == nil {
		reply, err := l.client.Await(ctx, messages.SessionID(b.Session), messages.BatchID(b.ID))
		var refusal *messages.Refusal
		switch {
		case err == nil:
			l.answered(ctx, b, reply)
			return
		case errors.As(err, &refusal):
			l.mu.Lock()
			b.Refused, b.Replied = fmt.Sprint(refusal), time.Now()
			l.mu.Unlock()
			return
		case errors.Is(err, client.ErrUnknown):
			l.mu.Lock()
			l.unknowns++
			l.mu.Unlock()
			if unknown.IsZero() {
				unknown = time.Now()
			}
			if time.Since(unknown) > 10*time.Second {
				return
			}
		default:
			unknown = time.Time{}
		}
		pause(ctx, 250*time.Millisecond)
	}
}

// answered records the reply, and the claims of the calls with an unknown outcome.
func (l *load) answered(ctx context.Context, b *Batch, reply messages.Reply) {
	now := time.Now()
	for i := range reply.Results {
		if r := &reply.Results[i]; r.Status == messages.StatusOutcomeUnknown {
			b.Claims[i] = l.claims(ctx, b, i)
		}
	}
	reply.Reinjection = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	b.Reply, b.Replied = reply, now
	l.arrived = append(l.arrived, now)
}

// claims returns every claim of a call in the journal.
func (l *load) claims(ctx context.Context, b *Batch, index int) []Claim {
	names := l.conn.Names()
	key := wire.KeyOf(messages.OneTenant, messages.SessionID(b.Session), messages.BatchID(b.ID))
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		records, err := l.conn.All(once, names.Stream(bus.Calls), names.OfCall(wire.VerbCall, key.Call(index)))
		cancel()
		if err != nil {
			pause(ctx, 250*time.Millisecond)
			continue
		}
		var claims []Claim
		for _, m := range records {
			var r wire.CallRecord
			if json.Unmarshal(m.Data, &r) == nil && r.State == wire.Claimed {
				claims = append(claims, Claim{r.Worker, m.Time})
			}
		}
		return claims
	}
	return nil
}

// reread reads the stored reply of every batch again.
func (l *load) reread(ctx context.Context) error {
	names := l.conn.Names()
	for _, b := range l.batches {
		key := wire.KeyOf(messages.OneTenant, messages.SessionID(b.Session), messages.BatchID(b.ID))
		stored, err := l.conn.Last(ctx, names.Stream(bus.Replies), names.Of(wire.VerbFinal, key))
		if errors.Is(err, bus.ErrNotFound) {
			b.Replied = time.Time{} // the agent got a reply that is no longer stored
			continue
		}
		if err != nil {
			return err
		}
		b.Stored = stored.Time
		var reply messages.Reply
		if err := json.Unmarshal(stored.Data, &reply); err != nil {
			return fmt.Errorf("the stored reply of batch %s: %w", b.ID, err)
		}
		reply.Reinjection = nil
		l.mu.Lock()
		reply.Append, b.Reply.Append = nil, nil // the old build stores no append, and a get adds it
		l.onMessage(b.ID, stored.Data)
		b.Copies = l.copies[b.ID]
		if received := rawjson.MustMarshal(b.Reply); b.Refused == "" && !bytes.Equal(received, rawjson.MustMarshal(reply)) {
			b.Copies[messages.Digest(received)] = true
		}
		l.mu.Unlock()
	}
	return nil
}

// left returns the batches in the log and the dead letters.
func (l *load) left(ctx context.Context) ([]string, error) {
	var left []string
	names := l.conn.Names()
	for _, stream := range []string{bus.Batches, bus.Dead} {
		all, err := l.conn.All(ctx, names.Stream(stream), ">")
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			what := m.Subject + " in " + stream
			if _, key, err := names.Batch(m.Subject); err == nil && stream == bus.Batches {
				switch _, err := l.conn.Last(ctx, names.Stream(bus.Replies), names.Of(wire.VerbFinal, key)); {
				case err == nil:
					what += ", which has its reply"
				case errors.Is(err, bus.ErrNotFound):
					what += ", which has no reply"
				default:
					return nil, err
				}
			}
			left = append(left, what)
		}
	}
	return left, nil
}

// lines counts the audit lines about each call.
func (l *load) lines(ctx context.Context) (map[string]map[int]int, error) {
	names, counts := l.conn.Names(), map[string]map[int]int{}
	err := l.conn.Scan(ctx, names.Stream(bus.Audit), names.All(wire.VerbAudit), bus.From{}, func(m bus.Msg) bool {
		var part wire.AuditLines
		if json.Unmarshal(m.Data, &part) != nil || part.Token == "" { // a line of a worker
			return true
		}
		if counts[part.Token] == nil {
			counts[part.Token] = map[int]int{}
		}
		for _, line := range part.Lines {
			if line.Type == messages.AuditCall { // not a question or a decision
				counts[part.Token][line.Index]++
			}
		}
		return true
	})
	return counts, err
}

func (l *load) progress() (acked, answered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.batches), len(l.arrived)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
