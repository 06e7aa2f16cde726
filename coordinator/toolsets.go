package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// toolsets follows the announcements of workers, and counts the jobs that this coordinator has in
// each queue. Package toolset decides from both where a job goes.
type toolsets struct {
	conn    *bus.Conn
	log     *slog.Logger
	changed func()        // called when other tools are served, or from other queues
	ready   chan struct{} // closed once the announcements before run are known
	once    sync.Once

	mu      sync.Mutex
	present map[string]wire.Presence // by key; guarded by mu
	fleet   *toolset.Fleet           // built from present; guarded by mu
	out     map[string]int           // jobs in each queue; guarded by mu
}

func newToolsets(conn *bus.Conn, log *slog.Logger, changed func()) *toolsets {
	return &toolsets{
		conn: conn, log: log, changed: changed, ready: make(chan struct{}), present: map[string]wire.Presence{}, fleet: toolset.New(nil), out: map[string]int{},
	}
}

// glanceEvery is the time between two reads of the announcements by a user who may not watch them.
const glanceEvery = 2 * time.Second

// run follows the announcements until ctx ends.
func (s *toolsets) run(ctx context.Context) error {
	name := s.conn.Names().Stream(bus.BucketWorkers)
	bucket, err := s.conn.Bucket(ctx, name)
	if err != nil {
		return err
	}
	isReady := func() { s.once.Do(func() { close(s.ready) }) }
	if s.conn.May(ctx, "$JS.API.CONSUMER.CREATE.KV_"+name+".any.$KV."+name+".>") {
		return bucket.Watch(ctx, s.learn, isReady)
	}
	s.log.Warn("this user may not watch which workers come and go, so they are read every 2 s: see deploy/nats/permissions/coordinator.conf")
	for ctx.Err() == nil {
		if values, err := s.conn.Values(ctx, name); err == nil {
			s.replace(values)
			isReady()
		}
		pause(ctx, glanceEvery)
	}
	return nil
}

// replace applies the whole bucket.
func (s *toolsets) replace(values map[string][]byte) {
	s.mu.Lock()
	gone := slices.DeleteFunc(slices.Collect(maps.Keys(s.present)), func(key string) bool { return values[key] != nil })
	s.mu.Unlock()
	for key, value := range values {
		s.learn(key, value)
	}
	for _, key := range gone {
		s.learn(key, nil)
	}
}

// learn applies one announcement; nil removes it.
func (s *toolsets) learn(key string, value []byte) {
	var w wire.Presence
	if value != nil {
		if err := json.Unmarshal(value, &w); err != nil {
			s.log.Error("the announcement of a worker cannot be read; it gets no jobs", "worker", key, "err", err)
			value = nil
		}
	}
	s.mu.Lock()
	if value == nil {
		delete(s.present, key)
	} else {
		s.present[key] = w
	}
	before := s.fleet
	s.fleet = toolset.New(slices.Collect(maps.Values(s.present)))
	same := before.Same(s.fleet)
	s.mu.Unlock()
	if !same {
		s.changed()
	}
}

func (s *toolsets) current() *toolset.Fleet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fleet
}

// place returns the queue for the job of a call, and counts the job there. avoid is a queue whose
// worker has just given the job back.
func (s *toolsets) place(t toolset.Tool, call, avoid string) (token string, served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	token, served = s.fleet.Place(t, call, func(token string) int {
		if token == avoid {
			return s.out[token] + 1<<20
		}
		return s.out[token]
	})
	s.out[token]++
	return token, served
}

func (s *toolsets) count(token string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out[token] += n; s.out[token] <= 0 {
		delete(s.out, token)
	}
}

// moveJobs has every run look whether its jobs are still in the right queues.
func (r *runs) moveJobs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.byKey {
		select {
		case d.workersChanged <- struct{}{}:
		default:
		}
	}
}

// placed is the queue that holds the job of a call.
type placed struct {
	token string // "": no job is known to be in a queue
	at    time.Time
	avoid string // the queue whose worker has given the job back
}

func (d *batchRun) toolOf(index int) toolset.Tool {
	call := d.machine.Plan().Calls[index]
	return toolset.Tool{Pool: call.Pool, Name: call.PlannedCall.Tool, Digest: call.ToolDigest}
}

// queueFor returns the queue for the job of a call. A job stays in its queue as long as that is
// right.
func (d *batchRun) queueFor(ctx context.Context, index int) (token string, events []batch.Event) {
	p, t := d.placed[index], d.toolOf(index)
	fleet := d.toolsets.current()
	if p.token != "" && !fleet.Keeps(p.token, t) || p.token == "" && p.avoid != "" {
		d.takeBack(ctx, index, t)
		p = d.placed[index]
	}
	if p.token == "" {
		p.token, _ = d.toolsets.place(t, d.accepted.Key.Call(index).String(), p.avoid)
		p.at = time.Now()
		d.placed[index] = p
	}
	return p.token, d.unserved(index, p.token, t, fleet)
}

// unserved tells the machine whether a call waits because the workers of its pool lack its tool.
func (d *batchRun) unserved(index int, token string, t toolset.Tool, fleet *toolset.Fleet) []batch.Event {
	is := token == wire.WaitingQueue(t.Pool) && fleet.Staffed(t.Pool)
	if is == d.lacking[index] {
		return nil
	}
	d.lacking[index] = is
	return []batch.Event{batch.Unserved{Index: index, Is: is}}
}

// takeBack removes the job of a call from queues where it may not stay. If another driver has put
// it into a queue where it may stay, it is left there.
func (d *batchRun) takeBack(ctx context.Context, index int, t toolset.Tool) {
	d.unplace(index)
	jobs, err := d.queue.of(ctx, index)
	for _, job := range jobs {
		switch token, _, nameErr := d.names.Job(job.Subject); {
		case nameErr != nil || !d.toolsets.current().Keeps(token, t):
			d.moved = true
			err = errors.Join(err, d.queue.removeAt(ctx, job.Seq))
		case token != d.placed[index].avoid: // else its worker is about to settle it
			d.adoptJob(index, token)
		}
	}
	d.moved = d.moved || err != nil
	if err != nil {
		d.log.Log(ctx, logfields.RetryLevel(err), "a job was not taken out of a queue that has no worker for it; it is when its batch ends", d.callAttr(index), "err", err)
	}
}

// adoptJob notes that the job of a call is in a queue.
func (d *batchRun) adoptJob(index int, token string) {
	d.unplace(index)
	d.toolsets.count(token, 1)
	d.placed[index] = placed{token: token, at: time.Now()}
}

// unplace notes that no job of a call is in a queue.
func (d *batchRun) unplace(index int) {
	if p, has := d.placed[index]; has && p.token != "" {
		d.toolsets.count(p.token, -1)
		d.placed[index] = placed{avoid: p.avoid}
	}
}

// gaveBack notes that a worker has given up the job of a call.
func (d *batchRun) gaveBack(index int) {
	p := d.placed[index]
	d.unplace(index)
	d.placed[index] = placed{avoid: p.token}
}

// adoptJobs finds the jobs of an earlier driver.
func (d *batchRun) adoptJobs(ctx context.Context) error {
	jobs, err := d.queue.all(ctx)
	for _, job := range jobs {
		token, key, nameErr := d.names.Job(job.Subject)
		if nameErr == nil && key.Index < len(d.in.Calls) {
			d.moved = d.moved || d.placed[key.Index].token != ""
			d.adoptJob(key.Index, token)
		}
	}
	return err
}

// moveJobs puts jobs into other queues whose workers have gone, and those that have waited for a
// worker that is there now.
func (d *batchRun) moveJobs(ctx context.Context) {
	fleet := d.toolsets.current()
	for index := range d.in.Calls {
		token := d.placed[index].token
		sign, out := d.machine.JobOut(time.Now(), index)
		if token == "" || !out {
			continue
		}
		t := d.toolOf(index)
		if fleet.Keeps(token, t) {
			for _, event := range d.unserved(index, token, t, fleet) {
				d.step(ctx, event)
			}
			continue
		}
		job := toolset.Job{Published: d.placed[index].at, Sign: sign}
		if token != wire.WaitingQueue(t.Pool) {
			job.Delivered = d.delivered(ctx, index, token)
		}
		if job.Moves(time.Now(), d.cfg.AckWait) {
			d.takeBack(ctx, index, t)
			d.step(ctx, batch.LetGo{Index: index})
		}
	}
}

// delivered reports whether a worker may have got the job of a call from a queue. It returns true
// if it cannot find out.
func (d *batchRun) delivered(ctx context.Context, index int, token string) bool {
	jobs, err := d.queue.of(ctx, index)
	if err != nil {
		return true
	}
	for _, job := range jobs {
		if in, _, err := d.names.Job(job.Subject); err != nil || in != token {
			continue
		}
		state, err := inspect.Consumer(ctx, d.conn, d.names.Stream(bus.Jobs), token)
		return !errors.Is(err, bus.ErrNotFound) && (err != nil || state.Delivered.Stream >= job.Seq)
	}
	return true // a worker has settled it
}

// leaveQueues forgets where the jobs of the batch are, when its run has ended.
func (d *batchRun) leaveQueues(ctx context.Context, finished bool) {
	for index := range d.placed {
		d.unplace(index)
	}
	if finished && d.moved { // nobody takes a job that was left behind
		if err := d.queue.withdrawAll(context.WithoutCancel(ctx)); err != nil {
			d.log.Debug("jobs of an ended batch may have been left in queues without workers", "err", err)
		}
	}
}
