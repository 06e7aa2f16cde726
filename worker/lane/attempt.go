package lane

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/call"
)

// running is one attempt in this worker. It carries out the effects of the attempt's machine.
// The goroutine of [running.run] owns all fields except the mailbox.
type running struct {
	consumer *Consumer
	machine  *attempt.Machine
	log      *slog.Logger
	pool     string // the pool that the job came from
	job      wire.Job
	key      wire.CallKey
	events   string // the subject of the batch's events
	mailbox  mailbox
	d        *pull.Delivery // the newest delivery of the job
	began    time.Time      // when the worker took the job
	span     trace.Span     // nil: no span

	cancel context.CancelCauseFunc // cancels the phases; nil before they start
	grants chan granted            // answers to the phases, which wait for them before they start the tool
	// questions holds the cancel function of each open request to the journal, by its
	// number.
	questions map[int]context.CancelFunc
	asked     int            // number of requests to the journal so far
	outbox    outbox         // sends messages to which no answer comes
	work      sync.WaitGroup // counts the goroutines of the phases, the requests and the outbox
}

// granted answers the phases when they want to start the tool: with a grant, or an error.
type granted struct {
	grant call.Grant
	err   error
}

// mailbox holds the events for the machine, in order. Any goroutine may add events.
type mailbox struct {
	mu    sync.Mutex
	mails []mail        // guarded by mu
	ready chan struct{} // has a value if there may be mails
}

// mail is an event for the machine, with data that only [running] uses.
type mail struct {
	event    attempt.Event
	delivery *pull.Delivery // only with a Delivered event
	question int            // number of the request that the event answers; 0: none
}

func (b *mailbox) post(m mail) {
	b.mu.Lock()
	b.mails = append(b.mails, m)
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

func (b *mailbox) take() []mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	mails := b.mails
	b.mails = nil
	return mails
}

// outbox sends, in order, messages that get no answer. A send may block while the connection
// hangs. The method run must not block, because it watches the lease of the call, so a
// goroutine sends. The goroutine lives only while there is something to send.
type outbox struct {
	mu    sync.Mutex
	sends []func() // guarded by mu
	busy  bool     // a goroutine is sending; guarded by mu
}

// add queues a send. If start is true, the caller has to run [outbox.empty] on a goroutine.
func (o *outbox) add(send func()) (start bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sends = append(o.sends, send)
	start = !o.busy
	o.busy = true
	return start
}

// empty sends until the outbox is empty.
func (o *outbox) empty() {
	for {
		o.mu.Lock()
		if len(o.sends) == 0 {
			o.busy = false
			o.mu.Unlock()
			return
		}
		next := o.sends[0]
		o.sends = o.sends[1:]
		o.mu.Unlock()
		next()
	}
}

// send sends a message that gets no answer. If the call needs a claim, the outbox sends it,
// because run has to watch the lease. Otherwise run itself sends it at once.
func (r *running) send(send func()) {
	if !r.machine.Claims() {
		send()
		return
	}
	r.queue(send)
}

// goroutine starts f on a goroutine. run waits for all of these goroutines before it returns.
func (r *running) goroutine(f func()) {
	r.work.Add(1)
	r.consumer.goroutines.Go(func() {
		defer r.work.Done()
		f()
	})
}

func (r *running) queue(send func()) {
	if r.outbox.add(send) {
		r.goroutine(r.outbox.empty)
	}
}

func (r *running) post(ev attempt.Event) { r.mailbox.post(mail{event: ev}) }

// run gives events to the machine until the delivery is settled. Then it waits for all
// goroutines of the attempt. When ctx ends, run gives the machine Draining, which ends the
// attempt.
func (r *running) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { r.post(attempt.Draining{}) })
	defer stop()
	defer r.work.Wait()
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
	var set time.Time // what alarm is set to
	for {
		for mails := r.mailbox.take(); len(mails) > 0; mails = r.mailbox.take() {
			for _, m := range mails {
				r.open(ctx, m)
			}
		}
		if r.machine.State() == attempt.Over {
			return
		}
		var due <-chan time.Time
		if wake := r.machine.Wake(); !wake.IsZero() {
			if !wake.Equal(set) {
				alarm.Reset(time.Until(wake))
				set = wake
			}
			due = alarm.C
		}
		select {
		case <-r.mailbox.ready:
		case <-due:
			set = time.Time{}
			r.step(ctx, attempt.Tick{})
		}
	}
}

// open gives the event of one mail to the machine.
func (r *running) open(ctx context.Context, m mail) {
	if m.delivery != nil {
		r.d = m.delivery
	}
	if done, found := r.questions[m.question]; found {
		done()
		delete(r.questions, m.question)
	}
	r.step(ctx, m.event)
}

// step gives one event to the machine and carries out the effects. ctx is used for requests
// to the journal that run waits for: see [running.ask].
func (r *running) step(ctx context.Context, ev attempt.Event) {
	for _, effect := range r.machine.Step(time.Now(), ev) {
		r.perform(r.traced(ctx), effect)
	}
}

func (r *running) perform(ctx context.Context, effect attempt.Effect) {
	switch e := effect.(type) {
	case attempt.Begin:
		r.post(attempt.Began{Span: r.trace(ctx, e.Prior)})
	case attempt.Run:
		r.start(ctx, e)
	case attempt.Grant:
		r.grants <- granted{grant: e.Grant}
	case attempt.Refuse:
		r.grants <- granted{err: e.Err}
	case attempt.Cancel:
		r.cancel(e.Cause)
	case attempt.Abort:
		r.abort()
	case attempt.Close:
		r.close(e.End)
	case attempt.Settle:
		d, log := r.d, r.log
		r.send(func() { r.consumer.settle(log, settle(d, e)) })
	case attempt.Extend:
		d, log := r.d, r.log
		r.send(func() {
			if err := d.InProgress(); err != nil {
				log.Debug("sign of life not sent", "err", err)
			}
		})
	case attempt.Notify:
		r.notify(e)
	case attempt.Emit:
		r.emit(e.Event)
	case attempt.Report:
		r.consumer.cfg.Observe(ctx, r.pool, e.Result)
	case attempt.Count:
		r.consumer.cfg.Count(counts[e.What], r.pool)
	case attempt.Log:
		r.log.Log(ctx, slog.Level(e.Level), e.Text, e.Args...)
	default:
		r.ask(ctx, effect)
	}
}

// start runs the phases on their own goroutine.
func (r *running) start(ctx context.Context, e attempt.Run) {
	ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	cancel := r.cancel
	if e.Cause != nil {
		cancel(e.Cause)
	}
	r.goroutine(func() {
		defer cancel(nil)
		tell := func(ev messages.Event) { r.post(attempt.Told{Event: ev}) }
		result, err := r.consumer.tools.Run(ctx, e.Job, e.Prior, r.claim, tell)
		r.post(attempt.Ended{Result: result, Err: err})
	})
}

// claim asks the machine for a grant. An answer always comes, at the latest when the run is
// cancelled.
func (r *running) claim(_ context.Context, f call.Frozen) (call.Grant, error) {
	r.post(attempt.Wanted{Frozen: f})
	answer := <-r.grants
	return answer.grant, answer.err
}

// ask makes a request to the journal, whose answer comes as an event. If run has a lease to
// renew or signs of life to send, the request runs on a goroutine. Otherwise run waits for the
// answer.
func (r *running) ask(ctx context.Context, question attempt.Effect) {
	if s := r.machine.State(); s != attempt.Looking && s != attempt.LookingAgain && !r.machine.Claims() {
		words, done := r.lastWords(ctx)
		defer done()
		r.post(answer(words, r.consumer.journal, r.key, question))
		return
	}
	r.asked++
	number := r.asked
	ctx, r.questions[number] = context.WithCancel(context.WithoutCancel(ctx))
	r.goroutine(func() {
		r.mailbox.post(mail{event: answer(ctx, r.consumer.journal, r.key, question), question: number})
	})
}

// lastWords returns a context that ends Config.LastWords after ctx, so that the end of a
// call can still be stored.
func (r *running) lastWords(ctx context.Context) (context.Context, context.CancelFunc) {
	words, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(r.consumer.cfg.LastWords, cancel) })
	return words, func() { stop(); cancel() }
}

// abort makes the open requests to the journal end soon. Each request still gets an answer.
func (r *running) abort() {
	for _, end := range r.questions {
		end()
	}
}

// answer carries out one request to the journal and returns the answer as an event.
func answer(ctx context.Context, j *journal.Journal, key wire.CallKey, question attempt.Effect) attempt.Event {
	var err error
	switch q := question.(type) {
	case attempt.ReadResult:
		var result messages.Result
		var found bool
		if result, found, err = j.Result(ctx, key); err == nil && !found {
			return attempt.ResultRead{}
		}
		if err == nil {
			return attempt.ResultRead{Result: &result}
		}
	case attempt.ReadRecord:
		var newest journal.CallEntry
		if newest, _, err = j.Newest(ctx, key); err == nil {
			return attempt.RecordRead{Newest: entry(newest)}
		}
	case attempt.Write:
		return write(ctx, j, key, q)
	case attempt.WriteResult:
		var stored messages.Result
		if stored, err = j.WriteResult(ctx, key, q.Result); err == nil {
			return attempt.Stored{Result: &stored}
		}
	case attempt.Offload:
		if err = j.Offload(ctx, &q.Result); err == nil {
			return attempt.Stored{Result: &q.Result}
		}
	case attempt.WriteHandBack:
		if err = j.WriteHandBack(ctx, key, q.Back); err == nil {
			return attempt.Stored{}
		}
	}
	return attempt.Failed{Why: failure(err), Err: err}
}

func write(ctx context.Context, j *journal.Journal, key wire.CallKey, w attempt.Write) attempt.Event {
	if !w.Until.IsZero() {
		var done context.CancelFunc
		ctx, done = context.WithDeadline(ctx, w.Until)
		defer done()
	}
	nonce := w.Record.Nonce
	seq, err := j.Write(ctx, key, w.Record, w.Behind)
	var lost *journal.Lost
	switch {
	case err == nil:
		return attempt.Stored{Nonce: nonce, Seq: seq}
	case errors.As(err, &lost):
		return attempt.Overtaken{Nonce: nonce, Newest: entry(lost.Newest)}
	}
	return attempt.Failed{Nonce: nonce, Why: failure(err), Err: err}
}

func entry(e journal.CallEntry) attempt.Entry {
	return attempt.Entry{Seq: e.Seq, Record: e.Record}
}

// failure classifies an error of the journal: whether another try may help, and what
// prevents it.
func failure(err error) attempt.Failure {
	switch {
	case errors.Is(err, bus.ErrTooLarge):
		return attempt.TooLarge
	case errors.Is(err, bus.ErrFull):
		return attempt.Full
	case bus.IsTerminal(err):
		return attempt.Terminal
	}
	return attempt.Unknown
}

// close removes the attempt from the worker's list. From then on no delivery reaches it.
func (r *running) close(end attempt.End) {
	r.abort()
	r.endTrace(end)
	r.consumer.leave(r)
	if end.Err != nil {
		r.log.Error("call not brought to an end here", "err", end.Err)
	}
}

func settle(d *pull.Delivery, s attempt.Settle) error {
	switch s.How {
	case attempt.Ack:
		return d.Ack()
	case attempt.Term:
		return d.Term(s.Reason)
	case attempt.Nak:
		return d.Nak(s.After)
	}
	return nil
}

func (r *running) notify(n attempt.Notify) {
	conn, log := r.consumer.conn, r.log
	r.send(func() {
		if err := conn.Publish(conn.Names().Notify(n.To), nil, wire.Encode(n.Notice)); err != nil {
			log.Debug("coordinator not told; its poll will find out", "err", err)
		}
	})
}

// emit publishes an event for watchers.
func (r *running) emit(e messages.Event) {
	audience, log := r.consumer.audience, r.log
	if !audience.Has(r.events) {
		return
	}
	r.send(func() {
		header := bus.Header{messages.EventHeader: {string(e.Type)}}
		if err := audience.Publish(r.events, header, func() []byte { return rawjson.MustMarshal(e) }); err != nil {
			log.Debug("event lost", "type", e.Type, "err", err)
		}
	})
}
