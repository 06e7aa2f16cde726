package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// writeLog records the writes of a fleet: which of them ran, and when each began and ended.
type writeLog struct {
	mu     sync.Mutex
	writes []writeRun // guarded by mu; in the order in which they began
}

// writeRun is one run of a write.
type writeRun struct {
	session messages.SessionID
	batch   messages.BatchID
	index   int
	from    time.Time
	to      time.Time // zero while the write runs
}

type pauseArgs struct {
	MS int64 `json:"ms"`
}

func (n pauseArgs) wait(ctx context.Context) error {
	select {
	case <-time.After(time.Duration(n.MS) * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tools registers put, a write that takes ms milliseconds, and count, a read. count also takes
// ms milliseconds and returns how many writes of its session have ended.
func (l *writeLog) tools(f *fleet) {
	f.tool(schemas.Tool{Name: "put", TimeoutMS: 600_000}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		var n pauseArgs
		if err := json.Unmarshal(c.Input, &n); err != nil {
			return tool.Output{}, err
		}
		l.mu.Lock()
		at := len(l.writes)
		l.writes = append(l.writes, writeRun{session: c.Session, batch: c.Batch, index: c.Index, from: time.Now()})
		l.mu.Unlock()
		err := n.wait(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.writes[at].to = time.Now()
		return tool.Text("put"), err
	})
	f.tool(schemas.Tool{Name: "count", Kind: messages.KindRead, TimeoutMS: 600_000}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		var n pauseArgs
		if err := json.Unmarshal(c.Input, &n); err != nil {
			return tool.Output{}, err
		}
		seen := 0
		l.mu.Lock()
		for _, w := range l.writes {
			if w.session == c.Session && !w.to.IsZero() {
				seen++
			}
		}
		l.mu.Unlock()
		return tool.Text(fmt.Sprint(seen)), n.wait(ctx)
	})
}

// checkLogOrder checks that the writes of every session ran once each, one at a time, in the
// order of the log. writes are the indexes of the writes in each batch.
func (l *writeLog) checkLogOrder(t *testing.T, log map[messages.SessionID][]messages.BatchID, writes ...int) {
	t.Helper()
	var want writeOrder
	for session, batches := range log {
		for _, b := range batches {
			for _, i := range writes {
				want.add(session, b, i)
			}
		}
	}
	l.checkOrder(t, want)
}

// writeOrder lists the writes of each session in the order in which they have to run.
type writeOrder map[messages.SessionID][]string

func (o *writeOrder) add(session messages.SessionID, b messages.BatchID, index int) {
	if *o == nil {
		*o = writeOrder{}
	}
	(*o)[session] = append((*o)[session], fmt.Sprint(b, ".", index))
}

// checkOrder checks that exactly these writes ran, once each and one at a time.
func (l *writeLog) checkOrder(t *testing.T, order writeOrder) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	of := map[messages.SessionID][]writeRun{}
	for _, w := range l.writes {
		of[w.session] = append(of[w.session], w)
	}
	for session, want := range order {
		var got []string
		for n, w := range of[session] {
			got = append(got, fmt.Sprint(w.batch, ".", w.index))
			if n > 0 && w.from.Before(of[session][n-1].to) {
				t.Errorf("session %s: %s began %v before the end of %s", session, got[n], of[session][n-1].to.Sub(w.from), got[n-1])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("session %s: writes ran as\n%v\nthe log says\n%v", session, got, want)
		}
	}
}

// publishLog publishes batches and records their order in the log, from the server's
// acknowledgements.
type publishLog struct {
	mu   sync.Mutex
	seqs map[messages.SessionID]map[messages.BatchID]uint64 // guarded by mu
}

func (p *publishLog) publish(f *fleet, conn *bus.Conn, b messages.Batch) {
	f.t.Helper()
	b.V = messages.Version
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	seq, err := conn.Append(ctx, conn.Names().Of(wire.VerbBatch, wire.KeyOf(messages.OneTenant, b.Session, b.ID)), nil, rawjson.MustMarshal(b))
	if err != nil {
		f.t.Errorf("publish batch %s of %s: %v", b.ID, b.Session, err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seqs == nil {
		p.seqs = map[messages.SessionID]map[messages.BatchID]uint64{}
	}
	if p.seqs[b.Session] == nil {
		p.seqs[b.Session] = map[messages.BatchID]uint64{}
	}
	p.seqs[b.Session][b.ID] = seq
}

// log returns the batches of each session in the order of the log.
func (p *publishLog) log() map[messages.SessionID][]messages.BatchID {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := map[messages.SessionID][]messages.BatchID{}
	for session, seqs := range p.seqs {
		for b := range seqs {
			log[session] = append(log[session], b)
		}
		slices.SortFunc(log[session], func(a, b messages.BatchID) int { return cmp.Compare(seqs[a], seqs[b]) })
	}
	return log
}
