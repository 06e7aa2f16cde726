package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// modelServer runs commands on the simulated broker.
type modelServer struct {
	names  wire.Names
	b      *broker.Broker
	queues []*broker.Queue
	held   []*broker.Delivery
}

func newModel(names wire.Names) *modelServer {
	m := &modelServer{names: names, b: broker.NewBroker(epoch, broker.Streams(names, time.Hour, 24*time.Hour)...)}
	for _, q := range broker.Queues(names, ackWait, 3) {
		m.queues = append(m.queues, m.b.Queue(q))
	}
	return m
}

func (m *modelServer) name() wire.Names                      { return m.names }
func (m *modelServer) append(subject string) (uint64, error) { return m.b.Append(subject, nil) }
func (m *modelServer) compareAndSet(subject string, last uint64) (uint64, error) {
	return m.b.CompareAndSet(subject, nil, last)
}
func (m *modelServer) delete(stream string, seq uint64) { m.b.Delete(stream, seq) }
func (m *modelServer) last(stream, subject string) string {
	return found(m.b.Stream(stream).Last(subject))
}
func (m *modelServer) first(stream, filter string) string {
	return found(m.b.Stream(stream).First(filter))
}
func (m *modelServer) all(stream, filter string) string {
	return list(m.b.Stream(stream).All(filter))
}
func (m *modelServer) lastOfEach(stream string, filters ...string) string {
	return list(m.b.Stream(stream).LastOfEach(filters...))
}

func (m *modelServer) pull(queue int) string {
	d := m.b.Pull(m.queues[queue])
	if d == nil {
		return "nothing"
	}
	m.held = append(m.held, d)
	return delivery(d.Seq, d.Subject, d.Count)
}

func (m *modelServer) settle(held int, how string, delay time.Duration) string {
	if len(m.held) == 0 {
		return "nothing held"
	}
	d := m.held[held%len(m.held)]
	switch how {
	case "ack":
		d.Ack()
	case "acksync":
		return confirmed(d.Ack())
	case "term":
		d.Term()
	case "progress":
		d.InProgress()
	case "nak":
		d.Nak(delay)
	}
	return settled(how, d.Seq, delay)
}

func (m *modelServer) wait(d time.Duration) { m.b.Advance(d) }
func (m *modelServer) restart()             { m.b.Advance(200 * time.Millisecond); m.b.Restart() }

func found(m *broker.Message) string {
	if m == nil {
		return "nothing"
	}
	return place(m.Seq, m.Subject)
}

func list(all []*broker.Message) string {
	var places []string
	for _, m := range all {
		places = append(places, place(m.Seq, m.Subject))
	}
	return strings.Join(places, ", ")
}

func confirmed(is bool) string {
	if is {
		return "confirmed"
	}
	return "no answer"
}

// realServer runs commands on the embedded server, through package bus. It sends pulls and
// acknowledgements itself, because package bus has no separate steps for them.
type realServer struct {
	t      *testing.T
	srv    *devserver.Server
	conn   *bus.Conn
	queues []provision.Consumer
	held   []bus.Msg
}

func newReal(t *testing.T, srv *devserver.Server, names wire.Names) *realServer {
	conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv, Prefix: names.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	r := &realServer{t: t, srv: srv, conn: conn}
	r.must(provision.Ensure(t.Context(), conn, provision.Config{}))
	pool, err := provision.QueueConsumer(conn.Names(), "default", ackWait, 3)
	r.must(err)
	r.queues = []provision.Consumer{provision.BatchesConsumer(conn.Names(), ackWait), pool}
	for _, q := range r.queues {
		r.must(provision.EnsureConsumer(t.Context(), conn, q))
	}
	r.align()
	return r
}

func (r *realServer) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// align waits for the next moment at which commands are run.
func (r *realServer) align() {
	synctest.Wait()
	if over := time.Since(epoch) % moment; over > 0 {
		time.Sleep(moment - over)
	}
	synctest.Wait()
}

func (r *realServer) name() wire.Names { return r.conn.Names() }
func (r *realServer) append(subject string) (uint64, error) {
	defer synctest.Wait()
	return r.conn.Append(r.t.Context(), subject, nil, nil)
}
func (r *realServer) compareAndSet(subject string, last uint64) (uint64, error) {
	return r.conn.CompareAndSet(r.t.Context(), subject, nil, nil, last)
}
func (r *realServer) delete(stream string, seq uint64) {
	r.must(r.conn.Delete(r.t.Context(), stream, seq))
	synctest.Wait()
}
func (r *realServer) last(stream, subject string) string {
	return r.found(r.conn.Last(r.t.Context(), stream, subject))
}
func (r *realServer) first(stream, filter string) string {
	return r.found(r.conn.First(r.t.Context(), stream, filter))
}
func (r *realServer) all(stream, filter string) string {
	return r.list(r.conn.All(r.t.Context(), stream, filter))
}
func (r *realServer) lastOfEach(stream string, filters ...string) string {
	return r.list(r.conn.LastOfEach(r.t.Context(), stream, filters...))
}

func (r *realServer) found(m bus.Msg, err error) string {
	if errors.Is(err, bus.ErrNotFound) {
		return "nothing"
	}
	r.must(err)
	return place(m.Seq, m.Subject)
}

func (r *realServer) list(all []bus.Msg, err error) string {
	r.must(err)
	var places []string
	for _, m := range all {
		places = append(places, place(m.Seq, m.Subject))
	}
	return strings.Join(places, ", ")
}

func (r *realServer) pull(queue int) (answer string) {
	q := r.queues[queue]
	subject := "$JS.API.CONSUMER.MSG.NEXT." + q.Stream + "." + q.Name
	r.must(r.conn.Stream(r.t.Context(), subject, nil, []byte(`{"batch":1,"expires":100000000}`), func(m bus.Msg) bool {
		if status := m.Header.Get("Status"); status != "" {
			answer = "nothing"
			if status != "408" {
				answer = status + " " + m.Header.Get("Description")
			}
			return false
		}
		r.held = append(r.held, m)
		count, _ := strconv.Atoi(strings.Split(m.Reply, ".")[4])
		answer = delivery(sequence(m), m.Subject, count)
		return false
	}))
	r.align()
	return answer
}

// sequence returns the sequence of a delivery, from its subject
// $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<...>
func sequence(m bus.Msg) uint64 {
	seq, _ := strconv.ParseUint(strings.Split(m.Reply, ".")[5], 10, 64)
	return seq
}

func (r *realServer) settle(held int, how string, delay time.Duration) string {
	if len(r.held) == 0 {
		return "nothing held"
	}
	m := r.held[held%len(r.held)]
	if how == "acksync" {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		_, err := r.conn.Request(ctx, m.Reply, nil, []byte("+ACK"))
		r.align()
		return confirmed(err == nil)
	}
	body := map[string]string{"ack": "+ACK", "term": "+TERM", "progress": "+WPI", "nak": "-NAK"}[how]
	if how == "nak" && delay > 0 {
		body = fmt.Sprintf(`-NAK {"delay":%d}`, delay)
	}
	r.must(r.conn.Publish(m.Reply, nil, []byte(body)))
	r.must(r.conn.Flush(r.t.Context()))
	synctest.Wait()
	return settled(how, sequence(m), delay)
}

func (r *realServer) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *realServer) restart() {
	time.Sleep(200 * time.Millisecond)
	r.must(r.srv.Restart())
	for !r.conn.Connected() {
		time.Sleep(10 * time.Millisecond)
	}
	for _, q := range r.queues {
		err := provision.EnsureConsumer(r.t.Context(), r.conn, q)
		for tries := 0; err != nil && tries < 10; tries++ { // a server that has just started may not answer yet
			err = provision.EnsureConsumer(r.t.Context(), r.conn, q)
		}
		r.must(err)
	}
	r.align()
}
