package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// position is a place in the events of a session, as the id of an event has it. The server that
// made it finds the place by number. Any other server finds it by what was shown: positions are all
// that is known of a client that comes back.
type position struct {
	Reader string `json:"r"` // the reader that made it
	Number uint64 `json:"n"` // of the event there
	// Since is a time, in nanoseconds since 1970: whatever ended before was shown.
	Since int64 `json:"s"`
	// Done are batches that were shown to their end and may have ended after Since, the latest
	// last.
	Done []string `json:"d,omitempty"`
	// Open holds what was shown of the batches that were not shown to their end: their calls in
	// order, each as "attempt.questions" and a letter of [callStates], equal ones as "3*...".
	Open map[string]string `json:"o,omitempty"`
}

// parsePosition reads the id of an event. A text that is no id is no position.
func parsePosition(id string) (p position, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(id)
	if id == "" || err != nil || json.Unmarshal(raw, &p) != nil {
		return position{}, false
	}
	return p, true
}

func (p position) since() time.Time { return time.Unix(0, p.Since) }

// shown is what was shown of a session.
type shown struct {
	ended time.Time              // the latest end of a batch that was shown to its end
	done  []string               // those batches, the latest last, at most maxDone
	open  map[string]*shownBatch // by batch: begun and not shown to their end
}

// shownBatch is what was shown of one batch: of each call in order, up to the last one with an
// event.
type shownBatch struct {
	began time.Time
	calls []callShown
}

// callShown is what was shown of one call.
type callShown struct {
	attempt   int  // the newest
	questions int  // how many
	state     byte // one of callStates

	again int // how many questions were added since the position was read; not part of it
}

// callStates are, in order: nothing was shown of a call, its start, its end, its result.
const callStates = "nser"

const (
	// maxDone bounds the batches that a position names. Of one that it no longer names, the events
	// may be shown again by another server.
	maxDone = 32
	// maxPlaced bounds the calls that are read from a position, and maxOpenText the bytes that it
	// writes about open batches, so that its id fits into a header. Of further calls the events may
	// be shown again by another server.
	maxPlaced   = 64 << 10
	maxOpenText = 36 << 10
	// slack is how much later a batch may be shown than one that ended after it.
	slack = 10 * time.Second
)

// nameOf makes the id of a batch short.
func nameOf(id messages.BatchID) string {
	sum := sha256.Sum256([]byte(id))
	return base64.RawURLEncoding.EncodeToString(sum[:6])
}

// shownUntil returns what was shown up to a position.
func shownUntil(p position) *shown {
	s := &shown{done: p.Done, open: map[string]*shownBatch{}}
	room := maxPlaced
	for name, text := range p.Open {
		calls := parseCalls(text, room)
		room -= len(calls)
		s.open[name] = &shownBatch{began: p.since(), calls: calls}
	}
	return s
}

// add takes an event and reports whether it is new. Progress and messages of hooks are live, so
// they always are.
func (s *shown) add(e messages.Event) (fresh bool) {
	name := nameOf(e.Batch)
	if isLive(e) {
		return !slices.Contains(s.done, name)
	}
	if slices.Contains(s.done, name) {
		return false
	}
	b := s.open[name]
	if b == nil {
		b = &shownBatch{began: e.Time}
		s.open[name] = b
	}
	if e.Type == messages.EventReply {
		delete(s.open, name)
		s.done = append(s.done, name)
		s.done = slices.Clone(s.done[max(0, len(s.done)-maxDone):])
		if e.Time.After(s.ended) {
			s.ended = e.Time
		}
		return true
	}
	return b.add(e)
}

// add takes an event about a call and reports whether it is new.
func (b *shownBatch) add(e messages.Event) (fresh bool) {
	if e.Index < 0 || e.Index >= messages.MaxCalls {
		return true
	}
	for len(b.calls) <= e.Index {
		b.calls = append(b.calls, callShown{state: callStates[0]})
	}
	c := &b.calls[e.Index]
	switch e.Type {
	case messages.EventRunning:
		fresh = e.Attempt > c.attempt
		c.attempt = max(c.attempt, e.Attempt)
		return fresh
	case messages.EventStart, messages.EventEnd, messages.EventResult:
		state := map[messages.EventType]byte{messages.EventStart: 's', messages.EventEnd: 'e', messages.EventResult: 'r'}[e.Type]
		fresh = strings.IndexByte(callStates, state) > strings.IndexByte(callStates, c.state)
		if fresh {
			c.state = state
		}
		return fresh
	case messages.EventAwaiting:
		c.again++
		fresh = c.again > c.questions
		c.questions = max(c.questions, c.again)
		return fresh
	}
	return true
}

// isLive reports whether an event is only of its moment: it is not shown again.
func isLive(e messages.Event) bool {
	return e.Type == messages.EventProgress || e.Type == messages.EventHook
}

// at returns the position after everything that was shown. began is from when on the reader reads.
func (s *shown) at(reader string, number uint64, began time.Time) position {
	since := began
	if after := s.ended.Add(-slack); !s.ended.IsZero() && after.After(began) {
		since = after
	}
	p := position{Reader: reader, Number: number, Done: s.done, Open: map[string]string{}}
	room := maxOpenText
	for name, b := range s.open {
		if b.began.Before(since) {
			since = b.began
		}
		text := formatCalls(b.calls)
		if room -= len(name) + len(text) + len(`"":"",`); room >= 0 {
			p.Open[name] = text
		}
	}
	p.Since = since.UnixNano()
	return p
}

// id returns a position as the id of an event.
func (p position) id() string {
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // never: texts and numbers
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

func (c callShown) text() string {
	return strconv.Itoa(c.attempt) + "." + strconv.Itoa(c.questions) + string(c.state)
}

func formatCalls(calls []callShown) string {
	var parts []string
	for i := 0; i < len(calls); {
		n := 1
		text := calls[i].text()
		for i+n < len(calls) && calls[i+n].text() == text {
			n++
		}
		if n > 1 {
			text = strconv.Itoa(n) + "*" + text
		}
		parts = append(parts, text)
		i += n
	}
	return strings.Join(parts, " ")
}

// parseCalls is the inverse of formatCalls. It leaves out what it cannot read, and what is over the
// limit: of such calls the events are shown again.
func parseCalls(text string, limit int) (calls []callShown) {
	for part := range strings.FieldsSeq(text) {
		count, call := 1, part
		if n, rest, ok := strings.Cut(part, "*"); ok {
			count, _ = strconv.Atoi(n)
			call = rest
		}
		attempt, rest, _ := strings.Cut(call, ".")
		if rest == "" || !strings.ContainsRune(callStates, rune(rest[len(rest)-1])) {
			return calls
		}
		c := callShown{state: rest[len(rest)-1]}
		c.attempt, _ = strconv.Atoi(attempt)
		c.questions, _ = strconv.Atoi(rest[:len(rest)-1])
		for range min(max(count, 0), min(limit, messages.MaxCalls)-len(calls)) {
			calls = append(calls, c)
		}
	}
	return calls
}
