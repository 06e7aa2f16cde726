package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The floor is raw JetStream with the fewest messages that can do the work.
//
//	client      -> stream BATCHES   a message for each batch           stored
//	coordinator -> stream JOBS      a message for each call            stored
//	worker      -> stream RESULTS   a message for each call            stored
//	coordinator <- its subscription to the subject of RESULTS
//	coordinator -> inbox of the client
//
// A job is acknowledged when its result is stored, a batch when it is answered. Batches of a
// session are not ordered, there are no claims, and replies are not kept. A batch whose coordinator
// is lost runs again from its beginning.
const (
	floorBatches = "floor.batches"
	floorJobs    = "floor.jobs"
	floorResults = "floor.results"
	floorInbox   = "floor.inbox"
)

func floorConnect(url string) (*nats.Conn, jetstream.JetStream, error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1<<17), jetstream.WithPublishAsyncErrHandler(
		func(_ jetstream.JetStream, m *nats.Msg, err error) { fmt.Fprintln(os.Stderr, m.Subject, err) }))
	return conn, js, err
}

// startFloor starts the floor on the same server as toolfleet.
func startFloor(f *fleet, server string) error {
	if err := startServer(f, server); err != nil {
		return err
	}
	conn, js, err := floorConnect(f.url("client"))
	if err != nil {
		return err
	}
	f.closers = append(f.closers, conn.Close)
	ctx := context.Background()
	for _, s := range []jetstream.StreamConfig{
		{Name: "BATCHES", Subjects: []string{floorBatches}, Retention: jetstream.WorkQueuePolicy},
		{Name: "JOBS", Subjects: []string{floorJobs}, Retention: jetstream.WorkQueuePolicy},
		{Name: "RESULTS", Subjects: []string{floorResults}, MaxAge: time.Hour},
	} {
		if _, err := js.CreateStream(ctx, s); err != nil {
			return err
		}
	}
	for _, stream := range []string{"BATCHES", "JOBS"} {
		_, err := js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{Durable: "all", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1 << 17, AckWait: time.Minute})
		if err != nil {
			return err
		}
	}
	if err := f.child("coordinator", "floor-coordinator", f.url("coordinator")); err != nil {
		return err
	}
	for range f.workers {
		if err := f.child("worker", "floor-worker", f.url("worker")); err != nil {
			return err
		}
	}
	var in mailboxes
	_, err = conn.Subscribe(floorInbox+".*", func(m *nats.Msg) {
		session, _ := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		in.of(session) <- m.Data
	})
	f.submit = func(ctx context.Context, l load, session int, n uint64) error {
		if _, err := js.PublishAsync(floorBatches, l.batch(session, n)); err != nil {
			return err
		}
		return in.await(ctx, session, func(body []byte) (bool, error) { return l.answered(body, n) })
	}
	return err
}

// floorBatch is a batch that the coordinator is working on.
type floorBatch struct {
	frame
	results [][]byte
	left    int // reads that have no result yet
	next    int // the next write
	ack     func() error
}

func floorCoordinator(url string) error {
	conn, js, err := floorConnect(url)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	live := map[uint64]*floorBatch{} // guarded by mu
	dispatch := func(b *floorBatch, i int) {
		if _, err := js.PublishAsync(floorJobs, b.job(i)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	advance := func(b *floorBatch) {
		switch {
		case b.left > 0:
		case b.next < len(b.parts):
			b.next++
			dispatch(b, b.next-1)
		default:
			delete(live, b.Batch)
			_ = conn.Publish(fmt.Sprint(floorInbox, ".", b.Session), frame{b.head, b.results}.encode())
			_ = b.ack()
		}
	}
	_, err = conn.Subscribe(floorResults, func(m *nats.Msg) {
		result := decode(m.Data)
		mu.Lock()
		defer mu.Unlock()
		b := live[result.Batch]
		if b == nil || b.results[result.Index] != nil {
			return
		}
		b.results[result.Index] = result.parts[0]
		if result.Index < b.Reads {
			b.left--
		}
		advance(b)
	})
	if err != nil {
		return err
	}
	return floorConsume(js, "BATCHES", 2000, func(m jetstream.Msg) {
		b := &floorBatch{frame: decode(m.Data()), ack: m.Ack}
		b.results = make([][]byte, len(b.parts))
		b.left, b.next = int(b.Reads), int(b.Reads)
		mu.Lock()
		defer mu.Unlock()
		live[b.Batch] = b
		for i := range b.left {
			dispatch(b, i)
		}
		advance(b)
	})
}

func floorConsume(js jetstream.JetStream, stream string, most int, take func(jetstream.Msg)) error {
	consumer, err := js.Consumer(context.Background(), stream, "all")
	if err != nil {
		return err
	}
	_, err = consumer.Consume(take, jetstream.PullMaxMessages(most))
	return err
}

func floorWorker(url string) error {
	_, js, err := floorConnect(url)
	if err != nil {
		return err
	}
	type ran struct {
		job    jetstream.Msg
		result jetstream.PubAckFuture
	}
	results := make(chan ran, 1<<17)
	go func() { // waits in the order of the publishes, which is the order of their answers
		for r := range results {
			select {
			case <-r.result.Ok():
				_ = r.job.Ack()
			case err := <-r.result.Err():
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	run := func(job jetstream.Msg, h head) {
		h.run()
		result, err := js.PublishAsync(floorResults, job.Data())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		results <- ran{job, result}
	}
	return floorConsume(js, "JOBS", 4000, func(job jetstream.Msg) {
		if h := decode(job.Data()).head; h.SleepMS == 0 {
			run(job, h)
		} else {
			go run(job, h)
		}
	})
}
