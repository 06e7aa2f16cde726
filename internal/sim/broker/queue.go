package broker

import (
	"maps"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// QueueConfig has those settings of a durable pull consumer that the model needs.
type QueueConfig struct {
	Stream      string
	Filters     []string // none: everything in the stream
	AckWait     time.Duration
	MaxInFlight int  // limit on unsettled deliveries; 0: no limit
	InMemory    bool // the server loses the consumer when it ends; a puller makes it again
}

// Queue is a durable consumer from which many processes pull. A message may be delivered
// twice, even to two processes at once. A process may settle a message although the consumer
// has already made it due again.
type Queue struct {
	QueueConfig
	stream *Stream
	state  queueState
	// written is the part of the state that is on the disk. The consumer writes its state a
	// moment after it changes: see [Broker.Advance].
	written queueState
}

// queueState is what a consumer knows of its deliveries.
type queueState struct {
	next    uint64           // the first sequence that was not delivered
	pending map[uint64]dueAt // messages that were delivered and not settled
	due     []uint64         // messages to deliver again before any new message, in this order
	again   map[uint64]int   // how many times a message was delivered again
}

// dueAt has two times at which an unsettled message is delivered again: without and with a
// restart of the server. The disk has the time of the message and not the time of its
// delivery. So after a restart, most messages are due at once.
type dueAt struct{ at, afterRestart time.Time }

func until(t time.Time) dueAt { return dueAt{t, t} }

// fresh returns the state of a new consumer, which begins with the first message.
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

// Delivery is a message that one process has got.
type Delivery struct {
	*Message
	// Count is how many times the message was delivered, this time included, as far as the
	// consumer knows.
	Count int
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

// Pull delivers the next message, or returns nil. Messages that are due again come first. Then
// comes the oldest message that was never delivered.
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

// collectDue makes the messages due that were not settled in time. The longest overdue message
// comes first.
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

// Ack removes the message from the queue. It reports whether the server confirms the removal.
// The server does not confirm it if it has forgotten the delivery in a crash.
func (d *Delivery) Ack() (confirmed bool) {
	q := d.queue
	if d.Seq >= q.state.next {
		return false
	}
	q.gone(d.Seq)
	q.stream.removeAt(d.b.Now, d.Seq)
	return true
}

// Term is the same as Ack in this model: the message is never delivered again.
func (d *Delivery) Term() { d.Ack() }

// Nak makes the message due again after delay. Until then it counts as in flight.
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

// InProgress extends the delivery by another AckWait. It does nothing if the message is
// already due again.
func (d *Delivery) InProgress() {
	s := &d.queue.state
	d.queue.collectDue(d.b.Now)
	if _, held := s.pending[d.Seq]; held {
		s.pending[d.Seq] = until(d.b.Now.Add(d.queue.AckWait))
	}
}

// gone removes from the state a message that has left the stream.
func (q *Queue) gone(seq uint64) {
	delete(q.state.pending, seq)
	delete(q.state.again, seq)
	q.state.due = slices.DeleteFunc(q.state.due, func(due uint64) bool { return due == seq })
}

// Advance moves the clock. Consumers write their state within a tenth of a second. So after
// Advance, the disk has everything that happened before.
func (b *Broker) Advance(d time.Duration) {
	for _, q := range b.queues {
		q.written = q.state.clone()
	}
	b.Now = b.Now.Add(d)
}

// Restart restarts the server after a kill or a stop. Streams keep all acknowledged messages.
// Consumers keep the state that they have written. They never write the order of due messages.
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
		// After a power loss, the server may give sequences that the consumer knows to new
		// messages.
		q.state.next = min(q.state.next, q.stream.last+1)
		q.collectDue(b.Now)
		slices.Sort(q.state.due)
	}
}

// Stop is like [Broker.Restart], but consumers lose no state, because they have written all of
// it.
func (b *Broker) Stop() {
	b.Advance(0)
	b.Restart()
}

// RestartBehind is like [Broker.Restart], but streams have lost some removals that consumers
// know. A message that was removed is then back in the stream, and is never delivered again.
// The server may give the sequences of removed newest messages to new messages.
func (b *Broker) RestartBehind(comesBack func() bool) {
	for _, s := range b.streams {
		if s.Queue {
			s.fallBack(b.Now, comesBack)
		}
	}
	b.Stop()
}

// PowerLoss is like [Broker.Restart], but async streams lose their newest messages, as many as
// lose returns. The server gives the sequences of these messages to new messages.
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

// Queues returns the consumers of the log and of the default pool.
func Queues(n wire.Names, ackWait time.Duration, maxInFlight int) []QueueConfig {
	return []QueueConfig{{Stream: n.Stream("BATCHES"), AckWait: ackWait}, JobsQueue(n, "default", ackWait, maxInFlight)}
}

// JobsQueue returns the consumer of the job queue with a token.
func JobsQueue(n wire.Names, token string, ackWait time.Duration, maxInFlight int) QueueConfig {
	return QueueConfig{Stream: n.Stream("JOBS"), AckWait: ackWait, MaxInFlight: maxInFlight, InMemory: true, Filters: n.QueueOf(token)}
}

// Delivered reports whether the consumer has delivered the message at a sequence, as far as it
// knows.
func (q *Queue) Delivered(seq uint64) bool { return seq < q.state.next }

// Holds reports whether the queue has a message that was never delivered.
func (q *Queue) Holds() bool { return q.stream.next(q.state.next, q.Filters...) != nil }

// Forget replaces the consumer by a new one. Call it only when the consumer has no unsettled
// deliveries.
func (q *Queue) Forget() { q.state = q.stream.fresh() }

// Waiting reports whether [Broker.Pull] would return a message now.
func (b *Broker) Waiting(q *Queue) bool {
	q.collectDue(b.Now)
	s := &q.state
	if slices.ContainsFunc(s.due, func(seq uint64) bool { _, there := q.stream.find(seq); return there }) {
		return true
	}
	return (q.MaxInFlight == 0 || len(s.pending) < q.MaxInFlight) && q.stream.next(s.next, q.Filters...) != nil
}

// Len returns how many messages the stream of a queue has.
func (q *Queue) Len() int { return len(q.stream.msgs) }

// EachDue calls each for every unsettled delivery, with the time at which its message is
// due again.
func (b *Broker) EachDue(each func(time.Time)) {
	for _, q := range b.queues {
		for _, p := range q.state.pending {
			each(p.at)
		}
	}
}
