package broker_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

var (
	histories = flag.Uint64("sim.histories", 40, "how many random histories the model broker and the real server run side by side")
	history   = flag.Int64("sim.history", -1, "run this one history only, and print it")
)

// TestBrokerAnswersAsTheRealServer runs random histories of commands on the model and on the
// embedded server, in simulated time. If their answers differ, the model is wrong.
func TestBrokerAnswersAsTheRealServer(t *testing.T) {
	const together = 40 // number of histories on one server
	first, end := uint64(0), *histories
	if testing.Short() {
		end = min(end, together)
	}
	if *history >= 0 {
		first, end = uint64(*history), uint64(*history)+1
	}
	for from := first; from < end && !t.Failed(); from += together {
		natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
			for seed := from; seed < min(from+together, end) && !t.Failed(); seed++ {
				compare(t, srv, seed, commands(seed))
			}
		}, natstest.Fast)
	}
}

// compare runs a history on the model and on the server. If their answers differ, it shows the
// shortest part of the history for which they still differ.
func compare(t *testing.T, srv *devserver.Server, seed uint64, list []command) {
	log, diff := runBoth(t, srv, list)
	if diff == "" {
		if *history >= 0 {
			t.Logf("history %d:\n%s", seed, log)
		}
		return
	}
	for n := len(list) - 1; n >= 0; n-- {
		shorter := slices.Delete(slices.Clone(list), n, n+1)
		if l, d := runBoth(t, srv, shorter); d != "" {
			list, log, diff = shorter, l, d
		}
	}
	t.Errorf("history %d: the model answers otherwise (-server +model):\n%s\nshortened to:\n%s", seed, diff, log)
}

// runBoth returns the answers of the server up to the first difference, and this difference.
func runBoth(t *testing.T, srv *devserver.Server, list []command) (log, diff string) {
	fleets++
	names := wire.Names{Prefix: fmt.Sprint("h", fleets)}
	real, model := newReal(t, srv, names), newModel(names)
	defer real.conn.Close()
	for n, c := range list {
		model.b.Advance(time.Since(epoch) - model.b.Now.Sub(epoch))
		got, want := c.run(model), c.run(real)
		log += fmt.Sprintf("%3d  %-16s  %s\n", n, c, want)
		if diff := cmp.Diff(want, got); diff != "" {
			return log, diff
		}
	}
	return log, ""
}

// fleets counts the histories. Each one has streams with a prefix of its own.
var fleets int

// epoch is the time at which a bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Commands are run at even seconds. What the server does by itself happens a third of a second
// later. So no answer depends on the order of two events at the same moment.
const (
	ackWait = 10*time.Second + 300*time.Millisecond
	moment  = 2 * time.Second
)

// command is one step of a history. The meaning of a and b depends on the verb and is the same
// on both sides.
type command struct {
	verb string
	a, b int
}

func (c command) String() string { return fmt.Sprintf("%s %d %d", c.verb, c.a, c.b) }

// server runs commands: it is the model or the real server.
type server interface {
	append(subject string) (uint64, error)
	compareAndSet(subject string, last uint64) (uint64, error)
	delete(stream string, seq uint64)
	last(stream, subject string) string
	first(stream, filter string) string
	all(stream, filter string) string
	lastOfEach(stream string, filters ...string) string
	pull(queue int) string
	settle(held int, how string, delay time.Duration) string
	wait(d time.Duration)
	restart()
	name() wire.Names
}

func commands(seed uint64) []command {
	rng := rand.New(rand.NewPCG(seed, 1))
	verbs := []string{
		"batch", "batch", "job", "job", "job", "claim", "claim", "claim", "result", "delete",
		"last", "first", "all", "each", "pull", "pull", "pull", "pull",
		"ack", "ack", "acksync", "nak", "nak", "term", "progress", "wait", "wait", "wait", "restart",
	}
	list := make([]command, 20+rng.IntN(60))
	for i := range list {
		list[i] = command{verbs[rng.IntN(len(verbs))], rng.IntN(16), rng.IntN(16)}
		if list[i].verb == "restart" && rng.IntN(3) > 0 {
			list[i].verb = "pull"
		}
	}
	return list
}

// run carries out the command and returns everything that can be observed of it.
func (c command) run(s server) string {
	n := s.name()
	key := wire.KeyOf(messages.OneTenant, messages.SessionID(fmt.Sprint("s", c.a%2)), messages.BatchID(fmt.Sprint("b", c.a/2%3)))
	call := key.Call(c.b % 3)
	switch c.verb {
	case "batch":
		return outcome(s.append(n.Of(wire.VerbBatch, key)))
	case "job":
		return outcome(s.append(n.Lane(c.b%2 == 0, "default", call)))
	case "claim":
		return outcome(s.compareAndSet(n.OfCall(wire.VerbCall, call), uint64(c.b/3*(c.a%3))))
	case "result":
		return outcome(s.compareAndSet(n.OfCall(wire.VerbResult, call), 0))
	case "delete":
		s.delete(n.Stream(bus.Batches), uint64(1+c.a%6))
	case "last":
		return s.last(n.Stream(bus.Calls), n.OfCall(wire.VerbCall, call))
	case "first":
		return s.first(n.Stream(bus.Batches), n.OfSession(wire.VerbBatch, key.Tenant, key.Session)+".*")
	case "all":
		return s.all(n.Stream(bus.Calls), n.OfCall(wire.VerbCall, call))
	case "each":
		return s.lastOfEach(n.Stream(bus.Calls), n.Of(wire.VerbCall, key)+".*", n.Of(wire.VerbPlan, key))
	case "pull":
		return s.pull(c.b % 2)
	case "ack", "acksync", "term", "progress", "nak":
		delay := time.Duration(0)
		if c.b%3 > 0 {
			delay = time.Duration(c.b%3)*2*time.Second + 300*time.Millisecond
		}
		return s.settle(c.a, c.verb, delay)
	case "wait":
		s.wait(moment * time.Duration(1+c.a%8))
	case "restart":
		s.restart()
	default:
		panic(c.verb)
	}
	return "done"
}

func outcome(seq uint64, err error) string {
	switch {
	case errors.Is(err, broker.ErrConflict), errors.Is(err, bus.ErrConflict):
		return "conflict"
	case errors.Is(err, broker.ErrExists), errors.Is(err, bus.ErrExists):
		return "exists"
	case err != nil:
		return err.Error()
	}
	return fmt.Sprint("stored at ", seq)
}

func place(seq uint64, subject string) string { return fmt.Sprintf("%d %s", seq, subject) }

func delivery(seq uint64, subject string, count int) string {
	return fmt.Sprintf("%s, delivery %d", place(seq, subject), count)
}

func settled(how string, seq uint64, delay time.Duration) string {
	if how == "nak" {
		return fmt.Sprintf("of %d, for %v", seq, delay)
	}
	return fmt.Sprintf("of %d", seq)
}
