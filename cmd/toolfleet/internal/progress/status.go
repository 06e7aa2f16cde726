package progress

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// BatchStatus says what an open batch does or waits for.
type BatchStatus struct {
	State  State            `json:"state"`
	Behind messages.BatchID `json:"behind,omitempty"` // the oldest open batch of the session
	Tool   string           `json:"tool,omitempty"`   // of the first call in this state
	More   int              `json:"more,omitempty"`   // further calls in this state
	Worker string           `json:"worker,omitempty"`
	// Gone says that the worker does not announce itself any more.
	Gone    bool      `json:"worker_gone,omitempty"`
	Pool    string    `json:"pool,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	Why     string    `json:"why,omitempty"` // the reason if the state is untold
}

// State is what an open batch does, as -o json prints it.
type State string

// States of an open batch. No record says that a read has started. So a read is
// queued_or_running: it may be running, or may wait for a worker.
const (
	StateBehind          State = "behind"
	StateAwaitingPerson  State = "waits_for_person"
	StateRunning         State = "running"
	StateQueued          State = "queued"
	StateQueuedOrRunning State = "queued_or_running"
	StateUnserved        State = "no_worker"
	StateEnding          State = "ending"
	StateUnknown         State = "untold"
)

// Text describes the status in one sentence.
func (s BatchStatus) Text(now time.Time) string {
	tool, more := terminal.Clean(s.Tool, 64), ""
	if s.More > 0 {
		more = fmt.Sprintf(", and %d more", s.More)
	}
	switch s.State {
	case StateBehind:
		return "behind " + terminal.Clean(string(s.Behind), 80)
	case StateAwaitingPerson:
		return fmt.Sprintf("waits for a person: %s (%s)%s", tool, untilExpiry(messages.Pending{Expires: s.Expires}, now), more)
	case StateRunning:
		text := "runs " + tool + " on " + terminal.Clean(s.Worker, 64)
		if s.Gone {
			text += ", which is not there"
		}
		return text + more
	case StateQueued:
		return "queued: " + tool + more
	case StateQueuedOrRunning:
		return "queued or running: " + tool + more
	case StateUnserved:
		return "queued: " + tool + more + "; no worker of pool " + terminal.Clean(s.Pool, 64) + " is there"
	case StateEnding:
		return "every call has ended"
	}
	return "not told: " + terminal.Clean(s.Why, 120)
}

// Heading returns the state in a few words.
func (s BatchStatus) Heading() string {
	switch s.State {
	case StateAwaitingPerson:
		return "waits for a person"
	case StateBehind, StateQueued, StateUnserved:
		return "queued"
	case StateRunning, StateEnding:
		return "running"
	}
	return "queued or running"
}

// StatusOf returns a batch's status from its timeline. An open question comes before running calls,
// because only a person can answer it; running calls come before queued ones.
func StatusOf(t messages.Timeline) BatchStatus {
	rows, _ := rowsOf(t, time.Time{})
	find := func(is func(row) bool) (found *row, more int) {
		for i := range rows {
			r := &rows[i]
			if r.result != nil || !is(*r) {
				continue
			}
			if found == nil || r.stage < found.stage {
				found = r
			}
			more++
		}
		return found, more - 1
	}
	if r, more := find(func(r row) bool { return r.asked != nil && !r.running }); r != nil {
		return BatchStatus{State: StateAwaitingPerson, Tool: r.tool, More: more, Expires: r.asked.Expires}
	}
	if r, more := find(func(r row) bool { return r.running }); r != nil {
		return BatchStatus{State: StateRunning, Tool: r.tool, More: more, Worker: r.worker}
	}
	if r, more := find(func(row) bool { return true }); r != nil {
		return BatchStatus{State: StateQueued, Tool: r.tool, More: more}
	}
	return BatchStatus{State: StateEnding}
}

// Fleet is the state of the fleet: workers, pools and tools. Explain of the zero value changes
// nothing.
type Fleet struct {
	tools   map[string]schemas.Tool
	workers map[string]bool
	pools   map[string]int // number of workers, by pool
}

// NewFleet returns the state of a fleet with these present workers and announced tools.
func NewFleet(workers []wire.Presence, tools []schemas.Tool) Fleet {
	around := Fleet{tools: map[string]schemas.Tool{}, workers: map[string]bool{}, pools: map[string]int{}}
	for _, w := range workers {
		around.workers[w.Worker] = true
		for _, pool := range w.Pools {
			around.pools[pool]++
		}
	}
	for _, t := range tools {
		around.tools[t.Name] = t
	}
	return around
}

// Explain adds to a status what the fleet's state shows: a lost worker, a pool without workers, or
// a call that may be running already.
func (around Fleet) Explain(s BatchStatus) BatchStatus {
	tool, known := around.tools[s.Tool]
	switch {
	case s.State == StateRunning && around.workers != nil:
		s.Gone = !around.workers[s.Worker]
	case s.State == StateQueued && known:
		s.Pool = tool.Pool
		switch {
		case around.pools[tool.Pool] == 0:
			s.State = StateUnserved
		case tool.Kind != messages.KindWrite:
			s.State = StateQueuedOrRunning
		}
	}
	return s
}
