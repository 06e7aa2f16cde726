package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/judge"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	machine "github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/call"
)

// worker carries out the effects of the real attempt.Machine on the model of the broker, as
// package lane does on a server. Its phases are a short form of package pipeline: see
// phases.go.
type worker struct {
	*world.Process
	fleet  *Fleet
	policy policy
	inHand []*attempt
	drains bool // takes no more jobs, and ends when it has none

	post  *post
	file  staff.File
	says  wire.Presence
	queue string    // the token of the queue of its jobs
	since time.Time // when it was first announced; zero: never
	leave bool      // it is about to drain
	ended time.Time // when its process ended
}

// stop stops a call.
func (w *worker) stop(key wire.CallKey) {
	for _, a := range w.inHand {
		if a.key == key {
			a.post(machine.Stopped{})
		}
	}
}

// attempt is one job in a worker.
type attempt struct {
	*world.Task
	worker   *worker
	machine  *machine.Machine
	job      wire.Job
	queued   time.Time // when the job was stored
	served   bool      // the worker serves the tool of the job
	key      wire.CallKey
	delivery *broker.Delivery // the newest delivery of the job
	lost     int              // deliveries of the job that were lost with their workers
	mails    []mail           // events for the machine, still to be handled

	// The following fields are set while the phases run:
	input    []byte // the input of the run, fixed by freeze
	argsHash string // hash of input
	answer   *answer
	grant    call.Grant
	run      *judge.Run // run of the tool; nil before it starts
	cause    error      // why the run was cancelled; nil: it was not
	cutAt    time.Time  // when it was cancelled
}

type mail struct {
	event    machine.Event
	delivery *broker.Delivery
}

// answer is the answer that the phases get when they want to start the tool: a grant or an
// error.
type answer struct {
	grant call.Grant
	err   error
}

// take starts an attempt for a delivery. If the worker already has the job, it passes the
// delivery on to the attempt at that job.
func (w *worker) take(d *broker.Delivery) {
	job := d.Body.(wire.Job)
	key := wire.BatchKey{Tenant: messages.OneTenant, Session: string(job.Session), Batch: string(job.Batch)}.Call(job.Index)
	served := w.file.Serves(job.Tool, job.ToolDigest)
	first := mail{machine.Delivered{Count: d.Count, Seq: d.Seq, Notify: job.Notify, Served: served, Queued: d.Time, Now: w.Now}, d}
	for _, a := range w.inHand {
		if served && a.served && a.key == key && a.job.TakeOver == job.TakeOver && a.job.ConcurrencySafe == job.ConcurrencySafe {
			a.mails = append(a.mails, first)
			return
		}
	}
	lost := min(d.Count-1, int((w.Now.Sub(d.Time)+AckWait/2)/AckWait)) + max(job.Attempt-(judge.Attempts-1), 0)
	a := &attempt{worker: w, job: job, queued: d.Time, served: served, key: key, lost: lost, mails: []mail{first}}
	token, _, _ := names.Job(d.Subject)
	w.inHand = append(w.inHand, a)
	w.fleet.judge.Takes(&judge.Attempt{Process: w.Process, Key: key, Job: job, Served: served}, token)
	w.fleet.judge.Lost(key, a.lost)
	w.Spawn("attempt", func(t *world.Task) {
		a.Task = t
		a.machine = machine.New(machine.Config{
			Worker: w.Name, AckWait: AckWait, Lease: Lease, Grace: Grace, ApprovalTTL: w.fleet.shape.AskFor,
			LastWords: 5 * time.Second, Poison: judge.Poison, MaxPayload: 1 << 20, MaxInline: 256 << 10,
		}, machine.Call{
			Job: job, Key: key, Claims: job.Kind == messages.KindWrite, Attempts: judge.Attempts,
			Backoff: func(int) time.Duration { return 500 * time.Millisecond }, Nonce: t.Nonce(), Jitter: t.Rng.Float64(),
		})
		a.live()
	})
}

// view returns what the judge needs to know about the attempt.
func (a *attempt) view() *judge.Attempt {
	return &judge.Attempt{
		Process: a.Process, Key: a.key, Job: a.job, Grant: a.grant, Input: a.input, ArgsHash: a.argsHash, Policy: a.worker.policy.version,
		Lost: a.lost, Claims: a.claims(), Served: a.served, Run: a.run, Queued: a.queued,
	}
}

func (a *attempt) post(e machine.Event) { a.mails = append(a.mails, mail{event: e}) }

// live gives events to the machine until the delivery is settled.
func (a *attempt) live() {
	for a.machine.State() != machine.Over {
		wake := a.machine.Wake()
		if wake.IsZero() {
			wake = world.Never
		}
		a.Wait(wake, func() bool { return len(a.mails) > 0 })
		event := machine.Event(machine.Tick{})
		if len(a.mails) > 0 {
			m := a.mails[0]
			a.mails = a.mails[1:]
			event = m.event
			if m.delivery != nil {
				a.delivery = m.delivery
			}
		}
		for _, effect := range a.machine.Step(a.Now, event) {
			a.perform(effect)
		}
	}
}

// perform carries out one effect.
func (a *attempt) perform(effect machine.Effect) {
	switch e := effect.(type) {
	case machine.Begin:
		a.post(machine.Began{})
	case machine.Run:
		a.cause, a.cutAt = e.Cause, a.Now
		a.worker.Spawn("phases", func(t *world.Task) { a.post(a.phases(t, e.Prior)) })
	case machine.Grant:
		a.answer = &answer{grant: e.Grant}
	case machine.Refuse:
		a.answer = &answer{err: e.Err}
	case machine.Cancel:
		a.cut(e.Cause)
	case machine.Close:
		a.worker.inHand = slices.DeleteFunc(a.worker.inHand, func(other *attempt) bool { return other == a })
		a.post(machine.Closed{})
	case machine.Settle:
		a.settle(e)
	case machine.Extend:
		a.Tell("progress", a.delivery.Subject, a.delivery.InProgress)
	case machine.Notify:
		a.Tell("notice", fmt.Sprintf("%s to %s", a.key, e.To), func() { a.Publish(names.Notify(e.To), e.Notice) })
	case machine.Count:
		if e.What == machine.LeaseMissed {
			a.Count("leases lost")
		}
	// A request ends after a while even without Abort, so Abort does nothing.
	case machine.Abort, machine.Emit, machine.Report, machine.Log:
	default:
		a.worker.Spawn("asks", func(t *world.Task) { a.post(a.ask(journal{t}, effect)) })
	}
}

func (a *attempt) settle(s machine.Settle) {
	d := a.delivery
	switch s.How {
	case machine.Ack:
		a.Tell("ack", d.Subject, func() { d.Ack() })
	case machine.Term:
		a.Tell("term", d.Subject, d.Term)
	case machine.Nak:
		a.Nak(d, s.After)
	}
}

// ask makes a request of the machine to the journal.
func (a *attempt) ask(j journal, question machine.Effect) machine.Event {
	var err error
	switch q := question.(type) {
	case machine.ReadResult:
		result, found, readErr := j.result(a.key)
		if readErr == nil && found {
			return machine.ResultRead{Result: &result}
		}
		if err = readErr; err == nil {
			return machine.ResultRead{}
		}
	case machine.ReadRecord:
		newest, readErr := j.newest(a.key)
		if err = readErr; err == nil {
			return machine.RecordRead{Newest: machine.Entry{Seq: newest.seq, Record: newest.record}}
		}
	case machine.Write:
		return a.write(j, q)
	case machine.WriteResult:
		stored, writeErr := j.writeResult(a.key, q.Result)
		if err = writeErr; err == nil {
			return machine.Stored{Result: &stored}
		}
	case machine.WriteHandBack:
		if err = j.handBack(a.key); err == nil {
			return machine.Stored{}
		}
	default:
		panic(fmt.Sprintf("the model cannot do %T", question))
	}
	return machine.Failed{Err: err}
}

func (a *attempt) write(j journal, w machine.Write) machine.Event {
	nonce, until := w.Record.Nonce, w.Until
	if until.IsZero() {
		until = world.Never
	}
	seq, err := j.write(a.key, w.Record, w.Behind, until)
	if lost, ok := err.(*lostTo); ok {
		return machine.Overtaken{Nonce: nonce, Newest: machine.Entry{Seq: lost.newest.seq, Record: lost.newest.record}}
	}
	if err != nil {
		return machine.Failed{Nonce: nonce, Err: err}
	}
	return machine.Stored{Nonce: nonce, Seq: seq}
}
