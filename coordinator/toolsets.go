package coordinator

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/placement"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

// toolsets follows the announcements of workers. Packages toolset and placement decide with
// them in which queue a job waits.
type toolsets struct {
	conn    *bus.Conn
	owners  toolset.Owners
	log     *slog.Logger
	changed func()        // called when the served tools or their queues have changed
	ready   chan struct{} // closed once the announcements from before run are known
	board   *placement.Board
	once    sync.Once

	workers *placement.Workers
	stale   chan struct{} // has a value while the board is out of date
}

func newToolsets(conn *bus.Conn, owners toolset.Owners, log *slog.Logger, changed func()) *toolsets {
	board := placement.NewBoard(owners)
	return &toolsets{
		conn: conn, owners: owners, log: log, changed: changed, ready: make(chan struct{}), board: board, workers: placement.NewWorkers(board), stale: make(chan struct{}, 1),
	}
}

// glanceEvery is the time between two reads of the announcements. A coordinator reads them at
// intervals if its user may not watch them.
const glanceEvery = 2 * time.Second

// run follows the announcements until ctx ends.
func (s *toolsets) run(ctx context.Context) error {
	name := s.conn.Names().Stream(bus.BucketWorkers)
	bucket, err := s.conn.Bucket(ctx, name)
	if err != nil {
		return err
	}
	isReady := func() {
		s.once.Do(func() {
			s.workers.Rebuild() // applies all announcements of the listing
			s.changed()
			close(s.ready)
		})
	}
	var rebuilding sync.WaitGroup
	defer rebuilding.Wait()
	rebuilding.Go(func() { s.rebuild(ctx) })
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

// replace applies the whole content of the bucket, and forgets the workers that are not in it.
func (s *toolsets) replace(values map[string][]byte) {
	for _, key := range s.workers.Keys() {
		if values[key] == nil {
			s.learn(key, nil)
		}
	}
	for key, value := range values {
		s.learn(key, value)
	}
}

// learn applies one announcement. With a nil value, it forgets the worker.
func (s *toolsets) learn(key string, value []byte) {
	var w wire.Presence
	if value != nil {
		var err error
		if w, err = wire.ReadPresence(key, value); err != nil {
			s.log.Error("the announcement of a worker cannot be read; it gets no jobs", "worker", key, "err", err)
			value = nil
		}
	}
	var stale bool
	var leftOut string
	if value == nil {
		stale = s.workers.Forget(key)
	} else {
		stale, leftOut = s.workers.Learn(key, w)
	}
	if leftOut != "" {
		s.log.Warn("a part of what a worker announces does not count: look who may announce workers", "worker", key, "left_out", leftOut)
	}
	if stale {
		select {
		case s.stale <- struct{}{}:
		default:
		}
	}
}

// rebuildShare is the length of the pause after a rebuild, as a multiple of the time that the
// rebuild took. A small fleet sees a change at once. In a large fleet, rebuilds take at most a
// tenth of one core.
const rebuildShare = 9

// rebuild updates the board whenever announcements have changed, until ctx ends.
func (s *toolsets) rebuild(ctx context.Context) {
	select {
	case <-s.ready:
	case <-ctx.Done():
	}
	for {
		select {
		case <-s.stale:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if s.workers.Rebuild() {
			s.changed()
		}
		if took := time.Since(began); took > 0 {
			pause(ctx, rebuildShare*took)
		}
	}
}

// serves reports whether a worker that takes new jobs of a tenant has exactly this tool.
func (s *toolsets) serves(tenant string, t schemas.Tool) bool {
	return s.board.Fleet().Serves(wanted(tenant, t))
}

// read reads the announcements of all workers anew.
func (s *toolsets) read(ctx context.Context) (*toolset.Fleet, error) {
	values, err := s.conn.Values(ctx, s.conn.Names().Stream(bus.BucketWorkers))
	var present []wire.Presence
	for key, value := range values {
		if w, err := wire.ReadPresence(key, value); err == nil {
			present = append(present, w)
		}
	}
	return s.owners.Fleet(present), err
}

// moveJobs asks the run of every batch to check that its jobs are in queues with workers that
// have the tools.
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

// newJobs returns the Jobs of the batch. The batch must be decoded.
func (d *batchRun) newJobs() *placement.Jobs {
	return placement.New(d.toolsets.board, d.queue, placement.Batch{
		Key: d.accepted.Key, Calls: len(d.in.Calls), Tool: d.toolOf, Silence: d.cfg.AckWait,
		Failed: func(index int, err error) {
			d.log.Log(context.Background(), logfields.RetryLevel(err), "a job was not taken out of a queue that has no worker for it; it is when its batch ends", d.callAttr(index), "err", err)
		},
	})
}

// moveJobs moves two kinds of jobs into other queues: jobs whose queue has lost its workers,
// and jobs that waited for a worker that has now come. It also ends calls whose tool version
// is gone.
func (d *batchRun) moveJobs(ctx context.Context) {
	for _, event := range d.jobs.Move(ctx, time.Now(), d.machine.JobOut) {
		d.step(ctx, event)
	}
	for index := range d.in.Calls {
		if _, out := d.machine.JobOut(time.Now(), index); out {
			events, _ := d.gone(index)
			for _, event := range events {
				d.step(ctx, event)
			}
		}
	}
}

// leaveQueues is called when the run of the batch has ended. If the batch is finished, it
// removes jobs that may be left in queues without workers.
func (d *batchRun) leaveQueues(ctx context.Context, finished bool) {
	if d.jobs == nil || !d.jobs.Leave() || !finished {
		return
	}
	if err := d.queue.withdrawAll(context.WithoutCancel(ctx)); err != nil {
		d.log.Debug("jobs of an ended batch may have been left in queues without workers; the sweep removes them", "err", err)
	}
}
