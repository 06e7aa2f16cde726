// Package store runs the real journal on the simulation's model of the broker.
package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	records "github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Names are the names of the subjects and streams.
var Names = wire.Names{}

// Names of the streams.
var (
	Log     = Names.Stream(bus.Batches)
	Calls   = Names.Stream(bus.Calls)
	Results = Names.Stream(bus.Results)
	Replies = Names.Stream(bus.Replies)
	Jobs    = Names.Stream(bus.Jobs)
)

// Journal returns the journal on a task's connection.
func Journal(t *world.Task) *records.Journal { return records.In(store{t}, noObjects{}, clock{t}) }

// store is a task's connection, with the methods that the journal needs. Each method is one
// command. The process may die before or after the command. The command or its answer may be
// lost.
type store struct{ *world.Task }

var _ records.Store = store{}

func (s store) Names() wire.Names             { return Names }
func (s store) MaxBody() int                  { return 1 << 19 }
func (s store) Now(context.Context) time.Time { return s.Task.Now }

func (s store) CompareAndSet(ctx context.Context, subject string, h bus.Header, data []byte, last uint64) (seq uint64, err error) {
	p := packed(subject, h, data)
	err = s.AskUntil(deadline(ctx), what(p), subject, func() (err error) {
		seq, err = s.Broker.CompareAndSet(subject, p, last)
		return err
	})
	return seq, err
}

func (s store) Append(ctx context.Context, subject string, h bus.Header, data []byte) (seq uint64, err error) {
	p := packed(subject, h, data)
	err = s.AskUntil(deadline(ctx), what(p), subject, func() (err error) {
		seq, err = s.Broker.Append(subject, p)
		return err
	})
	return seq, err
}

// Delete deletes the message with a sequence. It fails if the server has restarted since the
// request was sent. Without this rule, a late request could delete another message: the one
// that got the sequence after the restart.
func (s store) Delete(ctx context.Context, stream string, seq uint64) error {
	sent := s.Now(ctx)
	return s.AskUntil(deadline(ctx), "delete", fmt.Sprint(stream, " ", seq), func() error {
		if !s.Restarted.Before(sent) {
			return bus.ErrUnknown
		}
		s.Broker.Delete(stream, seq)
		return nil
	})
}

func (s store) First(ctx context.Context, stream, filter string) (bus.Msg, error) {
	return s.one(ctx, "first", filter, func() *broker.Message { return s.Stream(stream).First(filter) })
}

func (s store) Next(ctx context.Context, stream, filter string, after uint64) (bus.Msg, error) {
	return s.one(ctx, "next", filter, func() *broker.Message { return s.Stream(stream).Next(after, filter) })
}

func (s store) Last(ctx context.Context, stream, subject string) (bus.Msg, error) {
	return s.one(ctx, "last", subject, func() *broker.Message {
		if all := s.Stream(stream).LastOfEach(subject); len(all) > 0 {
			return all[len(all)-1]
		}
		return nil
	})
}

func (s store) At(ctx context.Context, stream string, seq uint64) (bus.Msg, error) {
	return s.one(ctx, "at", fmt.Sprint(stream, " ", seq), func() *broker.Message {
		return s.Stream(stream).At(seq)
	})
}

func (s store) NewestAt(ctx context.Context, stream string, seq uint64) (bus.Msg, error) {
	return s.At(ctx, stream, seq)
}

// one reads one message. The error is bus.ErrNotFound if there is none.
func (s store) one(ctx context.Context, what, subject string, find func() *broker.Message) (msg bus.Msg, err error) {
	err = s.ReadUntil(deadline(ctx), what, subject, func() error {
		m := find()
		if m == nil {
			return bus.ErrNotFound
		}
		msg = Msg(m)
		return nil
	})
	return msg, err
}

func (s store) All(ctx context.Context, stream, filter string) ([]bus.Msg, error) {
	return s.many(ctx, "all", filter, func() []*broker.Message { return s.Stream(stream).All(filter) })
}

func (s store) LastOfEach(ctx context.Context, stream string, filters ...string) ([]bus.Msg, error) {
	return s.many(ctx, "last of", filters[0], func() []*broker.Message { return s.Stream(stream).LastOfEach(filters...) })
}

func (s store) Glance(ctx context.Context, stream string, filters ...string) ([]bus.Msg, error) {
	return s.LastOfEach(ctx, stream, filters...)
}

func (s store) many(ctx context.Context, what, filter string, find func() []*broker.Message) (msgs []bus.Msg, err error) {
	err = s.ReadUntil(deadline(ctx), what, filter, func() error {
		for _, m := range find() {
			msgs = append(msgs, Msg(m))
		}
		return nil
	})
	return msgs, err
}

func (s store) Scan(ctx context.Context, stream, filter string, from bus.From, each func(bus.Msg) (more bool)) error {
	if from != (bus.From{}) {
		panic("sim: a scan from somewhere else than the start")
	}
	msgs, err := s.All(ctx, stream, filter)
	for _, msg := range msgs {
		if !each(msg) {
			break
		}
	}
	return err
}

// noObjects replaces the object store. No record of the simulation is so large that it needs
// one.
type noObjects struct{}

func (noObjects) Put(context.Context, []byte) (messages.Ref, error) { panic("sim: no objects") }
func (noObjects) Get(context.Context, messages.Ref) ([]byte, error) { panic("sim: no objects") }

// Msg returns a message in the form of package bus.
func Msg(m *broker.Message) bus.Msg {
	return bus.Msg{Subject: m.Subject, Seq: m.Seq, Time: m.Time, Header: m.Header, Data: m.Data}
}

// packed decodes a record that is about to be stored, because the ledger reads the decoded
// form.
func packed(subject string, h bus.Header, data []byte) broker.Packet {
	p := broker.Packet{Header: h, Data: data}
	switch verb := VerbOf(subject); verb {
	case wire.VerbCall:
		p.Body = decoded[wire.CallRecord](data)
	case wire.VerbPlan:
		p.Body = decoded[wire.PlanRecord](data)
	case wire.VerbHand:
		p.Body = decoded[wire.HandBack](data)
	case wire.VerbCtl:
		p.Body = decoded[wire.ControlRecord](data)
	case wire.VerbResult:
		p.Body = decoded[messages.Result](data)
	case wire.VerbFinal:
		p.Body = decoded[messages.Reply](data)
	default:
		panic(fmt.Sprintf("sim: the journal writes to %s", subject))
	}
	return p
}

// what names a packet in the printed history.
func what(p broker.Packet) string {
	switch body := p.Body.(type) {
	case wire.CallRecord:
		return string(body.State)
	case wire.PlanRecord:
		return "plan"
	case wire.HandBack:
		return "hand back"
	case wire.ControlRecord:
		return "control"
	case messages.Result:
		return "result"
	}
	return "reply"
}

func decoded[T any](data []byte) (value T) {
	if err := json.Unmarshal(data, &value); err != nil {
		panic(fmt.Sprintf("sim: a %T that cannot be read: %v", value, err))
	}
	return value
}

// VerbOf returns the verb of a subject.
func VerbOf(subject string) wire.Verb {
	_, rest, _ := strings.Cut(subject, ".")
	verb, _, _ := strings.Cut(rest, ".")
	return wire.Verb(verb)
}

// clock gives the journal the simulation's time for its timeouts.
type clock struct{ *world.Task }

func (c clock) Now() time.Time { return c.Task.Now }

func (c clock) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return By(ctx, c.Task.Now.Add(d)), func() {}
}

// bounded is a context with a deadline in simulated time. It has no Done channel, because the
// commands of a task check the deadline themselves.
type bounded struct {
	context.Context
	at time.Time
}

// By returns a context that ends at a simulated time.
func By(ctx context.Context, at time.Time) context.Context { return bounded{ctx, at} }

func (b bounded) Deadline() (time.Time, bool) { return b.at, true }

func deadline(ctx context.Context) time.Time {
	if at, ok := ctx.Deadline(); ok {
		return at
	}
	return world.Never
}
