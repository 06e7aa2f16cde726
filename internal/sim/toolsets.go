package sim

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/placement"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/judge"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	machine "github.com/toolfleet/toolfleet/worker/attempt"
)

// This file is the counterpart of internal/worker/presence.go and coordinator/toolsets.go:
// workers announce themselves, and coordinators follow the announcements. It uses the real
// package placement.

// post is a place for a worker. When a worker has ended, another worker gets its post.
type post struct {
	part   staff.Part
	old    bool // the workers of this post are of the previous version
	closed bool // at present no worker may have the post
	vacant bool
}

// jobQueue is the consumer of a queue of jobs. The server removes the consumer if nobody pulls
// for five minutes.
type jobQueue struct {
	*broker.Queue
	left time.Time // when its last worker left; zero while it has one
}

// hire starts the workers.
func (f *Fleet) hire() {
	for i := range f.shape.Workers {
		p := &post{old: i < f.shape.Old}
		if i < len(f.shape.Parts) {
			p.part = f.shape.Parts[i]
		}
		f.posts = append(f.posts, p)
		f.startWorker(p)
	}
}

func (f *Fleet) startWorker(p *post) {
	if p.vacant = p.closed; p.vacant {
		return
	}
	w := &worker{Process: f.Start("w", func() { f.startWorker(p) }), fleet: f, policy: f.policy, post: p, file: staff.File{Version: f.version, Part: p.part}}
	w.says, w.queue = w.file.Presence(w.Name, Slots, p.old, f.shape.Bounded)
	f.workers = append(f.workers, w)
	w.Bye = w.gone
	w.Spawn("serve", w.serve)
}

// queueOf returns the queue with a token, and makes it if it is missing.
func (f *Fleet) queueOf(token string) *jobQueue {
	q := f.queues[token]
	if q == nil {
		bound := 0
		if f.shape.Bounded {
			bound = 2 * Slots
		}
		q = &jobQueue{Queue: f.World.Queue(broker.JobsQueue(names, token, AckWait, bound))}
		f.queues[token] = q
	}
	return q
}

// serve announces the worker, and then the worker's tools. After that the worker takes jobs
// from its queue, and sometimes from the queue of the pool.
func (w *worker) serve(t *world.Task) {
	f := w.fleet
	own, pool := f.queueOf(w.queue), f.queueOf(staff.Pool)
	if !own.left.IsZero() && t.Now.Sub(own.left) > 5*time.Minute {
		own.Forget()
	}
	own.left = time.Time{}
	w.announce(t)
	_ = t.Insist(func() error { return t.Ask("tools", w.Name, func() error { f.staff.Define(w.file); return nil }) })
	w.Spawn("stay", w.stay)
	w.Spawn("aside", func(t *world.Task) {
		for own != pool {
			t.Wait(world.Never, func() bool { return w.takes(pool) })
			t.Sleep(time.Duration(t.Rng.IntN(3000)) * time.Millisecond)
			if w.takes(pool) {
				w.pull(t, pool)
			}
		}
	})
	for {
		t.Wait(world.Never, func() bool { return w.takes(own) })
		w.pull(t, own)
	}
}

func (w *worker) takes(q *jobQueue) bool {
	return !w.drains && len(w.inHand) < Slots && w.Waiting(q.Queue)
}

func (w *worker) pull(t *world.Task, q *jobQueue) {
	if d := t.Take(q.Queue); d != nil {
		w.take(d)
	}
}

func (w *worker) announce(t *world.Task) {
	_ = t.Insist(func() error {
		return t.Ask("announce", w.Name, func() error { w.fleet.staff.Put(w.says); return nil })
	})
	if w.since.IsZero() {
		w.since = t.Now
	}
}

// stay announces the worker again after each restart of the server, because the restart may
// have lost the announcement.
func (w *worker) stay(t *world.Task) {
	for {
		last := t.Restarted
		t.Wait(world.Never, func() bool { return t.Restarted.After(last) })
		if w.leave {
			continue
		}
		if t.Rng.IntN(3) == 0 {
			w.fleet.staff.Delete(w.Name)
		}
		w.announce(t)
	}
}

// gone is called when the worker has ended. The worker's announcement stays for a while.
func (w *worker) gone() {
	w.ended = w.Now
	w.fleet.people.Spawn("lapse", func(t *world.Task) {
		t.Sleep(staff.Lapse)
		w.fleet.staff.Delete(w.Name)
	})
	for _, other := range w.fleet.workers {
		if other.queue == w.queue && w.Alive(other.Process) {
			return
		}
	}
	w.fleet.queueOf(w.queue).left = w.Now
}

// drain ends the worker as a signal would. If it is the last worker of its toolset, it
// first takes the jobs that are left in its queue.
func (w *worker) drain() {
	w.Count("drains")
	w.Logf(w.Name, "DRAINS", "%d calls", len(w.inHand))
	w.leave, w.says.Draining = true, true
	w.Spawn("drain", func(t *world.Task) {
		_ = t.Ask("drains", w.Name, func() error { w.fleet.staff.Put(w.says); return nil })
		for end := t.Now.Add(15 * time.Second); t.Now.Before(end) && w.needed(t); {
			t.Sleep(500 * time.Millisecond)
		}
		w.drains = true
		t.Wait(t.Now.Add(time.Duration(t.Rng.IntN(30))*time.Second), func() bool { return len(w.inHand) == 0 })
		for _, a := range w.inHand {
			a.post(machine.Draining{})
		}
		t.Wait(world.Never, func() bool { return len(w.inHand) == 0 })
		t.Tell("departs", w.Name, func() { w.fleet.staff.Delete(w.Name) })
		w.Doomed = true
	})
}

// needed reports whether the worker's queue has jobs that no other worker takes.
func (w *worker) needed(t *world.Task) (needed bool) {
	if w.queue == staff.Pool {
		return false
	}
	_ = t.ReadUntil(world.Never, "queue", w.queue, func() error {
		needed = w.fleet.queueOf(w.queue).Holds()
		for _, other := range w.fleet.staff.Present() {
			needed = needed && (other.Worker == w.Name || other.Draining || other.Queues[staff.Pool].Token != w.queue)
		}
		return nil
	})
	return needed
}

// startGap starts a process that sends one worker or all workers away for a while.
func (f *Fleet) startGap() {
	p := f.Start("g", nil)
	p.Spawn("gap", func(t *world.Task) {
		t.Sleep(time.Duration(f.Rng.IntN(20_000)) * time.Millisecond)
		posts := f.posts
		if f.Rng.IntN(2) == 0 {
			i := f.Rng.IntN(len(posts))
			posts = posts[i : i+1]
		}
		f.Count("gaps")
		t.Logf(t.Name, "GAP", "of %d workers", len(posts))
		for _, p := range posts {
			p.closed = true
		}
		for _, w := range f.workers {
			if w.post.closed && f.Alive(w.Process) && !w.leave {
				if f.Rng.IntN(3) == 0 {
					w.Doomed = true
				} else {
					w.drain()
				}
			}
		}
		t.Sleep([]time.Duration{time.Second, 20 * time.Second, 2 * time.Minute, 10 * time.Minute}[f.Rng.IntN(4)])
		for _, p := range posts {
			if p.closed = false; p.vacant {
				f.startWorker(p)
			}
		}
	})
}

// Workers implements [judge.Fleet].
func (f *Fleet) Workers() (all []judge.Worker) {
	for _, w := range f.workers {
		all = append(all, judge.Worker{
			Process: w.Process, File: w.file, Queue: w.queue, Since: w.since, Ended: w.ended, Leaves: w.leave, Drains: w.drains, Free: len(w.inHand) == 0,
		})
	}
	return all
}

// followStaff updates the coordinator's board whenever the announcements of workers change. It
// calls ready after the first update.
func (c *coordinator) followStaff(t *world.Task, ready func()) {
	for seen := -1; ; {
		t.Wait(world.Never, func() bool { return c.fleet.staff.Revision != seen })
		var present []wire.Presence
		revision := 0
		if t.ReadUntil(world.Never, "workers", c.Name, func() error {
			present, revision = c.fleet.staff.Present(), c.fleet.staff.Revision
			return nil
		}) != nil {
			t.Sleep(time.Second)
			continue
		}
		seen = revision
		if c.board.Set(present) {
			for _, d := range c.live {
				d.staffed = true
			}
		}
		if ready != nil {
			ready()
			ready = nil
		}
	}
}

// sweepJobs removes the jobs of ended batches from queues without workers.
func (c *coordinator) sweepJobs(t *world.Task) {
	var all []*broker.Message
	err := t.ReadUntil(world.Never, "jobs", c.Name, func() error {
		all = t.Stream(jobsStream).All(">")
		return nil
	})
	for _, m := range all {
		token, key, nameErr := names.Job(m.Subject)
		if err != nil || nameErr != nil || !c.board.Strays(token, t.Now.Sub(m.Time), AckWait) || c.live[key.BatchKey] != nil {
			continue
		}
		if _, open, err := truth(t).Open(anytime, key.BatchKey); err == nil && !open {
			t.Count("strays")
			_ = t.Ask("remove", m.Subject, func() error { t.Delete(jobsStream, m.Seq); return nil })
		}
	}
}

// queues reads and removes the jobs of one batch, over a task's connection.
type queues struct{ d *drive }

var _ placement.Queues = queues{}

func (q queues) Of(_ context.Context, index int) ([]placement.Queued, error) {
	return q.read("jobs of", names.JobOf(q.d.sub.Key.Call(index)))
}

func (q queues) All(context.Context) ([]placement.Queued, error) {
	return q.read("all jobs of", names.JobsOf(q.d.sub.Key))
}

func (q queues) read(what string, filters []string) (jobs []placement.Queued, err error) {
	err = q.d.ReadUntil(world.Never, what, filters[0], func() error {
		for _, m := range q.d.Stream(jobsStream).LastOfEach(filters...) {
			token, key, err := names.Job(m.Subject)
			if err != nil {
				panic(err)
			}
			jobs = append(jobs, placement.Queued{Token: token, Index: key.Index, Seq: m.Seq})
		}
		return nil
	})
	return jobs, err
}

func (q queues) Remove(_ context.Context, seq uint64) error {
	return q.d.Ask("take back", q.d.sub.Key.String(), func() error { q.d.Delete(jobsStream, seq); return nil })
}

func (q queues) Delivered(_ context.Context, job placement.Queued) (delivered bool) {
	err := q.d.ReadUntil(world.Never, "delivered", job.Token, func() error {
		queue := q.d.coordinator.fleet.queues[job.Token]
		delivered = queue != nil && queue.Delivered(job.Seq)
		return nil
	})
	return delivered || err != nil
}

func (d *drive) newJobs() *placement.Jobs {
	return placement.New(d.coordinator.board, queues{d}, placement.Batch{
		Key: d.sub.Key, Calls: len(d.sub.Calls), Silence: AckWait, Failed: func(int, error) {},
		Tool: func(i int) toolset.Tool {
			call := d.machine.Plan().Calls[i]
			return toolset.Tool{Pool: call.Pool, Name: call.PlannedCall.Tool, Digest: call.ToolDigest}
		},
	})
}

// isGone reports whether no worker has the tool of a call. It reads the announcements again.
func (d *drive) isGone(index int) (events []batch.Event, gone bool) {
	var fleet *toolset.Fleet
	if d.ReadUntil(world.Never, "workers", d.Name, func() error {
		fleet = toolset.New(d.coordinator.fleet.staff.Present())
		return nil
	}) != nil {
		return nil, false
	}
	events, gone = d.jobs.Gone(index, fleet)
	d.staffed = d.staffed || !gone
	return events, gone
}

func (d *drive) moveJobs() {
	d.staffed = false
	for _, e := range d.jobs.Move(anytime, d.Now, d.machine.JobOut) {
		d.Count("jobs moved")
		d.step(e)
	}
}

// withdraw removes the jobs of an ended call from the queues.
func (d *drive) withdraw(index int) {
	jobs, err := queues{d}.Of(anytime, index)
	for _, job := range jobs {
		if err == nil {
			err = queues{d}.Remove(anytime, job.Seq)
		}
	}
}

func (d *drive) leaveQueues(finished bool) {
	if d.jobs.Leave() && finished {
		_ = d.withdrawAll()
	}
}
