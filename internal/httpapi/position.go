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

// position is a place in the events of a session. The id of an event encodes it. The server
// that made the position finds the place by its number. Any other server has to find the place
// by what was shown, because the position is all that it knows about a client that reconnects.
type position struct {
	Reader string `json:"r"` // the reader that made the position
	Number uint64 `json:"n"` // the number of the event at the place
	// Since is a time, in nanoseconds since 1970. Every batch that ended before this time was
	// shown.
	Since int64 `json:"s"`
	// Done lists batches that were shown to their end and may have ended after Since. The
	// latest is the last.
	Done []string `json:"d,omitempty"`
	// Open says, for each batch that was not shown to its end, what was shown of its calls, in
	// the order of the calls. A call has the form "attempt.questions" and a letter of
	// [callStates]. For three equal calls in a row, the form is "3*...".
	Open map[string]string `json:"o,omitempty"`
}

// parsePosition reads the id of an event. ok is false for a text that is not an id of a
// server.
func parsePosition(id string) (p position, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(id)
	if id == "" || err != nil || json.Unmarshal(raw, &p) != nil {
		return position{}, false
	}
	return p, true
}

func (p position) since() time.Time { return time.Unix(0, p.Since) }

// shown records which events of a session were shown.
type shown struct {
	ended time.Time              // the latest end of a batch that was shown to its end
	done  []string               // the batches shown to their end, the latest last, at most maxDone
	open  map[string]*shownBatch // by batch: those that were begun and not shown to their end
}

// shownBatch records what was shown of the calls of one batch, in order, up to the last call
// with an event.
type shownBatch struct {
	began time.Time
	calls []callShown
}

// callShown records what was shown of one call.
type callShown struct {
	attempt   int  // the newest attempt
	questions int  // number of questions
	state     byte // a letter of callStates

	again int // number of questions added since the position was read; not in the position
}

// callStates are, in order: nothing of the call was shown; its start; its end; its result.
const callStates = "nser"

const (
	// maxDone limits the batches that a position names. When the position no longer names a
	// batch, another server may show its events again.
	maxDone = 32
	// maxPlaced limits the calls that are read from a position. maxOpenText limits the bytes
	// that a position has about open batches, so that it fits into a header. Another server
	// may show the events of calls beyond these limits again.
	maxPlaced   = 64 << 10
	maxOpenText = 36 << 10
	// slack is how much later a batch may be shown than another batch that ended after it.
	slack = 10 * time.Second
)

// nameOf returns a short hash of a batch's id.
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

// add records an event, and reports whether the client has to get it. A live event is new
// unless its batch was shown to its end.
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

// add records an event about a call, and reports whether it is new.
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

// isLive reports whether an event is of interest only at its moment. Such an event is never
// shown again.
func isLive(e messages.Event) bool {
	return e.Type == messages.EventProgress || e.Type == messages.EventHook
}

// at returns the position after everything that was shown. began is the time since which the
// reader has every event.
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

// id encodes a position as the id of an event.
func (p position) id() string {
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // cannot happen: the fields are texts and numbers
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

// parseCalls is the inverse of formatCalls. It leaves out calls that it cannot read and calls
// beyond the limit. The events of these calls are shown again.
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
