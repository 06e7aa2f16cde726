// Package broker is a model of a JetStream server: the streams, shared pull consumers and core
// messages that the protocol uses. Its clock moves only when the caller moves it. It answers
// every command as the real server does: tests run random commands on both and compare the
// answers.
//
// The model loses nothing by itself. Methods such as [Broker.Restart] and [Broker.PowerLoss]
// decide what is left after a crash of the server.
package broker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Errors of a command. [ErrUnknown] means that the server has not answered.
var (
	ErrConflict = bus.ErrConflict // the server's error 10071
	ErrExists   = bus.ErrExists   // the server's error 10077
	ErrUnknown  = bus.ErrUnknown  // a timeout
)

// Broker is the model of the server.
type Broker struct {
	Now     time.Time
	streams []*Stream
	queues  []*Queue
	inboxes map[string][]any // messages for core subscribers, by subject
	// Stored is called for every message that a stream stores. May be nil.
	Stored func(*Message)
	// Restarted is the time of the last restart, or zero.
	Restarted time.Time
}

// Message is a message in a stream. A stored body never changes. A message of the journal also
// has bytes and a header, because the journal reads what it has written.
type Message struct {
	Subject string
	Seq     uint64
	Time    time.Time // when the server stored it
	Body    any
	Header  bus.Header
	Data    []byte
}

// Packet is a body with its bytes.
type Packet struct {
	Body   any
	Header bus.Header
	Data   []byte
}

// StreamConfig has those settings of a stream that the model needs.
type StreamConfig struct {
	Name     string
	Subjects []string
	// Queue says that the stream keeps one message for each subject, refuses a second one, and
	// removes a message when it is acknowledged. Any other stream keeps every message for
	// MaxAge.
	Queue bool
	// Async says that the server acknowledges a write before the write is on the disk. A power
	// loss may then delete the newest messages.
	Async  bool
	MaxAge time.Duration // 0: for ever
}

// Stream is a log of messages.
type Stream struct {
	StreamConfig
	last uint64     // sequence of the newest message that was ever stored
	msgs []*Message // sorted by sequence
	gone []removed  // messages of a queue that were lately removed, in the order of removal
}

// removed is a removed message with the time of its removal. The server writes the removal to
// the disk a moment later.
type removed struct {
	*Message
	at time.Time
}

// unwritten is how long the server may take to write a removal to the disk.
const unwritten = 2 * time.Second

// Streams returns the streams of a fleet that have batches and calls.
func Streams(n wire.Names, batchTTL, replyTTL time.Duration) []StreamConfig {
	all := func(verbs ...wire.Verb) (filters []string) {
		for _, v := range verbs {
			filters = append(filters, n.All(v))
		}
		return filters
	}
	return []StreamConfig{
		{Name: n.Stream("BATCHES"), Subjects: []string{n.EveryBatch(wire.VerbBatch)}, Queue: true},
		{Name: n.Stream("JOBS"), Subjects: all(wire.VerbRead, wire.VerbWrite), Queue: true, Async: true},
		{Name: n.Stream("CALLS"), Subjects: append(all(wire.VerbCall, wire.VerbPlan, wire.VerbHand), n.OfSession(wire.VerbCtl, "*", "*")), MaxAge: 3 * batchTTL},
		{Name: n.Stream("RESULTS"), Subjects: all(wire.VerbResult), Async: true, MaxAge: 3 * batchTTL},
		{Name: n.Stream("REPLIES"), Subjects: all(wire.VerbFinal), MaxAge: replyTTL},
	}
}

// NewBroker returns a server with these streams, all empty.
func NewBroker(now time.Time, streams ...StreamConfig) *Broker {
	b := &Broker{Now: now, inboxes: map[string][]any{}}
	for _, config := range streams {
		b.streams = append(b.streams, &Stream{StreamConfig: config})
	}
	return b
}

// Stream returns the stream of that name.
func (b *Broker) Stream(name string) *Stream {
	for _, s := range b.streams {
		if s.Name == name {
			s.forget(b.Now)
			return s
		}
	}
	panic("sim: no stream " + name)
}

// Append stores a message and returns its sequence.
func (b *Broker) Append(subject string, body any) (uint64, error) {
	s := b.taking(subject)
	if s.Queue && s.Last(subject) != nil {
		return 0, ErrExists
	}
	s.last++
	m := &Message{Subject: subject, Seq: s.last, Time: b.Now, Body: body}
	if p, is := body.(Packet); is {
		m.Body, m.Header, m.Data = p.Body, p.Header, p.Data
	}
	s.msgs = append(s.msgs, m)
	if b.Stored != nil {
		b.Stored(m)
	}
	return s.last, nil
}

// CompareAndSet stores a message if the newest message of its subject has the sequence last.
// last is 0 for a subject without messages.
func (b *Broker) CompareAndSet(subject string, body any, last uint64) (uint64, error) {
	newest := uint64(0)
	if m := b.taking(subject).Last(subject); m != nil {
		newest = m.Seq
	}
	if newest != last {
		return 0, ErrConflict
	}
	return b.Append(subject, body)
}

// Delete removes a message from a stream, if it is there.
func (b *Broker) Delete(stream string, seq uint64) {
	s := b.Stream(stream)
	if !s.removeAt(b.Now, seq) {
		return
	}
	for _, q := range b.queues {
		if q.stream == s {
			q.gone(seq)
		}
	}
}

// Subscribe opens an inbox for core messages. A message is lost if no inbox is open for it.
func (b *Broker) Subscribe(subject string) { b.inboxes[subject] = []any{} }

// Unsubscribe closes an inbox.
func (b *Broker) Unsubscribe(subject string) { delete(b.inboxes, subject) }

// Publish sends a core message to the inboxes of its subject.
func (b *Broker) Publish(subject string, body any) {
	if inbox, open := b.inboxes[subject]; open {
		b.inboxes[subject] = append(inbox, body)
	}
}

// Heard returns how many core messages an inbox has, and whether the inbox is open.
func (b *Broker) Heard(subject string) (n int, open bool) {
	inbox, open := b.inboxes[subject]
	return len(inbox), open
}

// Hear removes the oldest core message from an inbox and returns it.
func (b *Broker) Hear(subject string) (any, bool) {
	inbox := b.inboxes[subject]
	if len(inbox) == 0 {
		return nil, false
	}
	b.inboxes[subject] = inbox[1:]
	return inbox[0], true
}

// taking returns the stream that stores a subject.
func (b *Broker) taking(subject string) *Stream {
	for _, s := range b.streams {
		if slices.ContainsFunc(s.Subjects, func(f string) bool { return matches(f, subject) }) {
			s.forget(b.Now)
			return s
		}
	}
	panic("sim: no stream takes " + subject)
}

// Last returns the newest message of a subject, or nil.
func (s *Stream) Last(subject string) *Message {
	for _, m := range slices.Backward(s.msgs) {
		if m.Subject == subject {
			return m
		}
	}
	return nil
}

// First returns the oldest message that matches the filter, or nil.
func (s *Stream) First(filter string) *Message { return s.next(1, filter) }

// Next returns the oldest message after a sequence that matches the filter, or nil.
func (s *Stream) Next(after uint64, filter string) *Message { return s.next(after+1, filter) }

// next returns the oldest message at or after a sequence that matches one of the filters, or
// nil. Without filters, every message matches.
func (s *Stream) next(from uint64, filters ...string) *Message {
	for _, m := range s.msgs {
		if m.Seq >= from && matchesOne(filters, m.Subject) {
			return m
		}
	}
	return nil
}

// All returns every message that matches the filter, in sequence.
func (s *Stream) All(filter string) []*Message {
	var found []*Message
	for _, m := range s.msgs {
		if matches(filter, m.Subject) {
			found = append(found, m)
		}
	}
	return found
}

// LastOfEach returns the newest message of every subject that matches one of the filters, in
// sequence.
func (s *Stream) LastOfEach(filters ...string) []*Message {
	var found []*Message
	for _, m := range slices.Backward(s.msgs) {
		if matchesOne(filters, m.Subject) && !slices.ContainsFunc(found, func(newer *Message) bool { return newer.Subject == m.Subject }) {
			found = append(found, m)
		}
	}
	slices.Reverse(found)
	return found
}

// Messages returns the messages of the stream, in sequence.
func (s *Stream) Messages() []*Message { return s.msgs }

// At returns the message at a sequence, or nil.
func (s *Stream) At(seq uint64) *Message {
	if at, found := s.find(seq); found {
		return s.msgs[at]
	}
	return nil
}

func (s *Stream) find(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(s.msgs, seq, func(m *Message, seq uint64) int { return cmp.Compare(m.Seq, seq) })
}

func (s *Stream) removeAt(now time.Time, seq uint64) bool {
	at, found := s.find(seq)
	if found {
		if s.Queue {
			s.gone = slices.DeleteFunc(s.gone, func(r removed) bool { return now.Sub(r.at) > unwritten })
			s.gone = append(s.gone, removed{s.msgs[at], now})
		}
		s.msgs = slices.Delete(s.msgs, at, at+1)
	}
	return found
}

// fallBack restores a stream after a restart that lost removals, because they were not on the
// disk. Each message that was lately removed comes back if comesBack returns true for it. The
// server may give sequences after the newest message to new messages.
func (s *Stream) fallBack(now time.Time, comesBack func() bool) {
	for _, r := range s.gone {
		if now.Sub(r.at) <= unwritten && s.Last(r.Subject) == nil && comesBack() {
			at, _ := s.find(r.Seq)
			s.msgs = slices.Insert(s.msgs, at, r.Message)
		}
	}
	if comesBack() {
		s.last = 0
		if n := len(s.msgs); n > 0 {
			s.last = s.msgs[n-1].Seq
		}
	}
}

// forget removes messages that are too old.
func (s *Stream) forget(now time.Time) {
	for s.MaxAge > 0 && len(s.msgs) > 0 && now.Sub(s.msgs[0].Time) >= s.MaxAge {
		s.msgs = s.msgs[1:]
	}
}

func matchesOne(filters []string, subject string) bool {
	return len(filters) == 0 || slices.ContainsFunc(filters, func(f string) bool { return matches(f, subject) })
}

// matches reports whether a filter matches a subject. * stands for one token, and > for one or
// more tokens at the end.
func matches(filter, subject string) bool {
	for {
		f, restOfFilter, moreFilter := strings.Cut(filter, ".")
		s, restOfSubject, moreSubject := strings.Cut(subject, ".")
		switch {
		case f == ">":
			return true
		case f != "*" && f != s, moreFilter != moreSubject:
			return false
		case !moreFilter:
			return true
		}
		filter, subject = restOfFilter, restOfSubject
	}
}
