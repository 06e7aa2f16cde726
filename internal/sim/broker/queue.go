package broker

import (
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// QueueConfig is what matters to us of a durable pull consumer's settings.
type QueueConfig struct {
	Stream      string
	Filters     []string // none: everything in the stream
	AckWait     time.Duration
	MaxInFlight int  // deliveries that are not settled; 0: no bound
	InMemory    bool // goes with the server; whoever pulls makes it anew
}

// Queue is a durable consumer that many parties pull from. Everything it promises is a hint: a message may be
// delivered twice, to two holders at once, and it takes the word of a holder that it has given up on.
type Queue struct {
	QueueConfig
	stream *Stream
	state  queueState
	// written is what is on the disk of the state. It follows a moment later: see [Broker.Advance].
	written queueState
}

// queueState is what a consumer knows about its deliveries.
type queueState struct {
	next    uint64           // the first sequence that was never delivered
	pending map[uint64]dueAt // delivered and not settled
	due     []uint64         // to be delivered before anything new, in this order
	again   map[uint64]int   // how often it was delivered again
}

// dueAt is when a delivery that is not settled is made again, and when that is after a restart of the
// server: a delivery writes down the time of the message instead of its own, so most things are due at once then.
type dueAt struct{ at, afterRestart time.Time }

func until(t time.Time) dueAt { return dueAt{t, t} }

// fresh is the state of a consumer that is made now: it begins with the first message that is there.
func (s *Stream) fresh() queueState {
	first := s.last + 1
	if len(s.msgs) > 0 {
		first = s.msgs[0].Seq
	}
	return queueState{next: first, pending: map[uint64]dueAt{}, again: map[uint64]int{}}
}

func (s queueState) clone() queueState {
	return queueState{s.next, maps.Clone(s.pending), slices.Clone(s.due), maps.Clone(s.again)}
}

// Delivery is a message in the hands of one party.
type Delivery struct {
	*Message
	Count int // how often it was delivered as far as the consumer knows, this time included
	queue *Queue
	b     *Broker
}

// Queue makes a consumer.
func (b *Broker) Queue(config QueueConfig) *Queue {
	q := &Queue{QueueConfig: config, stream: b.Stream(config.Stream)}
	q.state = q.stream.fresh()
	q.written = q.state.clone()
	b.queues = append(b.queues, q)
	return q
}

// Pull takes the next message: one that is due again, else the oldest one that was never delivered. Nil when
// there is none at this moment.
func (b *Broker) Pull(q *Queue) *Delivery {
	q.collectDue(b.Now)
	s := &q.state
	for len(s.due) > 0 {
		seq := s.due[0]
		s.due = s.due[1:]
		if at, found := q.stream.find(seq); found {
			s.again[seq]++
			return q.deliver(b, q.stream.msgs[at])
		}
	}
	if q.MaxInFlight > 0 && len(s.pending) >= q.MaxInFlight {
		return nil
	}
	m := q.stream.next(s.next, q.Filters...)
	if m == nil {
		s.next = max(s.next, q.stream.last+1)
		return nil
	}
	s.next = m.Seq + 1
	return q.deliver(b, m)
}

func (q *Queue) deliver(b *Broker, m *Message) *Delivery {
	q.state.pending[m.Seq] = dueAt{b.Now.Add(q.AckWait), m.Time.Add(q.AckWait)}
	return &Delivery{m, 1 + q.state.again[m.Seq], q, b}
}

// collectDue puts up for delivery what was not settled in time: what has waited longest first.
func (q *Queue) collectDue(now time.Time) {
	var due []uint64
	for seq, p := range q.state.pending {
		if !now.Before(p.at) && !slices.Contains(q.state.due, seq) {
			due = append(due, seq)
		}
	}
	slices.SortFunc(due, func(a, b uint64) int {
		if byTime := q.state.pending[a].at.Compare(q.state.pending[b].at); byTime != 0 {
			return byTime
		}
		return int(a) - int(b)
	})
	q.state.due = append(q.state.due, due...)
}

// Ack takes the message out of the queue. It reports whether the server confirms it to who waits for
// that: it does not when it has forgotten, in a crash, that it ever delivered the message.
func (d *Delivery) Ack() (confirmed bool) {
	q := d.queue
	if d.Seq >= q.state.next {
		return false
	}
	q.gone(d.Seq)
	q.stream.removeAt(d.b.Now, d.Seq)
	return true
}

// Term is Ack in other words: nobody gets the message again.
func (d *Delivery) Term() { d.Ack() }

// Nak puts the message up for delivery again after delay. Until then it counts as in flight.
func (d *Delivery) Nak(delay time.Duration) {
	s := &d.queue.state
	d.queue.collectDue(d.b.Now)
	if _, held := s.pending[d.Seq]; !held {
		return
	}
	isDue := slices.Index(s.due, d.Seq)
	switch {
	case delay > 0:
		s.pending[d.Seq] = until(d.b.Now.Add(delay))
		if isDue >= 0 {
			s.due = slices.Delete(s.due, isDue, isDue+1)
		}
	case isDue < 0:
		s.due = append(s.due, d.Seq)
	}
}

// InProgress asks for another AckWait. It does not call back what is up for delivery already.
func (d *Delivery) InProgress() {
	s := &d.queue.state
	d.queue.collectDue(d.b.Now)
	if _, held := s.pending[d.Seq]; held {
		s.pending[d.Seq] = until(d.b.Now.Add(d.queue.AckWait))
	}
}

// gone forgets a message that has left the stream.
func (q *Queue) gone(seq uint64) {
	delete(q.state.pending, seq)
	delete(q.state.again, seq)
	q.state.due = slices.DeleteFunc(q.state.due, func(due uint64) bool { return due == seq })
}

// Advance moves the clock. Consumers write what they know within a tenth of a second, so whatever happened
// before this moment is on the disk.
func (b *Broker) Advance(d time.Duration) {
	for _, q := range b.queues {
		q.written = q.state.clone()
	}
	b.Now = b.Now.Add(d)
}

// Restart is a server that was killed (or stopped) and is back. Streams keep all that was acknowledged.
// Consumers know what they have written; the order in which things were up for delivery is never written.
func (b *Broker) Restart() {
	b.Restarted = b.Now
	for _, s := range b.streams {
		s.gone = nil
	}
	for _, q := range b.queues {
		if q.InMemory {
			q.state = q.stream.fresh()
			continue
		}
		q.state = q.written.clone()
		q.state.due = nil
		for seq, p := range q.state.pending {
			q.state.pending[seq] = until(p.afterRestart)
			if seq > q.stream.last {
				q.gone(seq)
			}
		}
		q.state.next = min(q.state.next, q.stream.last+1) // after a power loss they may have given again what they know
		q.collectDue(b.Now)
		slices.Sort(q.state.due)
	}
}

// Stop is a [Broker.Restart] in good order: consumers write what they know first.
func (b *Broker) Stop() {
	b.Advance(0)
	b.Restart()
}

// RestartBehind is a [Broker.Restart] after which queues have not heard of some removals, while their consumers have:
// what is back is never delivered again. The sequences of the newest messages, which were removed, may be given again.
func (b *Broker) RestartBehind(comesBack func() bool) {
	for _, s := range b.streams {
		if s.Queue {
			s.fallBack(b.Now, comesBack)
		}
	}
	b.Stop()
}

// PowerLoss is a [Broker.Restart] after which async streams have also lost as many of their newest
// messages as lose says. Their sequences are then given again.
func (b *Broker) PowerLoss(lose func(stored int) int) {
	for _, s := range b.streams {
		if s.Async {
			if keep := len(s.msgs) - lose(len(s.msgs)); keep < len(s.msgs) {
				s.last = s.msgs[keep].Seq - 1
				s.msgs = s.msgs[:keep]
			}
		}
	}
	b.Restart()
}

// Queues is the consumers of the log and of the default pool.
func Queues(n wire.Names, ackWait time.Duration, maxInFlight int) []QueueConfig {
	return []QueueConfig{{Stream: n.Stream("BATCHES"), AckWait: ackWait}, JobsQueue(n, "default", ackWait, maxInFlight)}
}

// JobsQueue is the consumer of the queue of jobs with a token.
func JobsQueue(n wire.Names, token string, ackWait time.Duration, maxInFlight int) QueueConfig {
	return QueueConfig{Stream: n.Stream("JOBS"), AckWait: ackWait, MaxInFlight: maxInFlight, InMemory: true, Filters: n.QueueOf(token)}
}

// Delivered reports whether the consumer knows that it has delivered the message with a sequence.
func (q *Queue) Delivered(seq uint64) bool { return seq < q.state.next }

// Holds reports whether the queue has a message that was never delivered.
func (q *Queue) Holds() bool { return q.stream.next(q.state.next, q.Filters...) != nil }

// Forget is the end of the consumer, which has no deliveries in hand, and its new beginning.
func (q *Queue) Forget() { q.state = q.stream.fresh() }

// Waiting reports whether [Broker.Pull] would give a message now.
func (b *Broker) Waiting(q *Queue) bool {
	q.collectDue(b.Now)
	s := &q.state
	if slices.ContainsFunc(s.due, func(seq uint64) bool { _, there := q.stream.find(seq); return there }) {
		return true
	}
	return (q.MaxInFlight == 0 || len(s.pending) < q.MaxInFlight) && q.stream.next(s.next, q.Filters...) != nil
}

// Len returns how many messages the stream of a queue holds.
func (q *Queue) Len() int { return len(q.stream.msgs) }

// EachDue calls each for the times at which deliveries that are not settled are made again.
func (b *Broker) EachDue(each func(time.Time)) {
	for _, q := range b.queues {
		for _, p := range q.state.pending {
			each(p.at)
		}
	}
}
