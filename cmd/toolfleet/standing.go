package main

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// standing is the status of an open batch: what it does now, or waits for.
type standing struct {
	State   standingState    `json:"state"`
	Behind  messages.BatchID `json:"behind,omitempty"` // session's oldest open batch
	Tool    string           `json:"tool,omitempty"`   // of the first call in this state
	More    int              `json:"more,omitempty"`   // further calls in this state
	Worker  string           `json:"worker,omitempty"`
	Gone    bool             `json:"worker_gone,omitempty"` // the worker announces itself no more
	Pool    string           `json:"pool,omitempty"`
	Expires time.Time        `json:"expires,omitzero"`
	Why     string           `json:"why,omitempty"` // the reason, for untold
}

type standingState string

// States of an open batch. No record says that a read has started, so "running" and "waiting for a
// worker" cannot be told apart for it: queued_or_running.
const (
	isBehind  standingState = "behind"
	asksHuman standingState = "waits_for_person"
	isRunning standingState = "running"
	isQueued  standingState = "queued"
	isHanded  standingState = "queued_or_running"
	unserved  standingState = "no_worker"
	isEnding  standingState = "ending"
	isUntold  standingState = "untold"
)

// text describes the status in one sentence.
func (s standing) text(now time.Time) string {
	tool, more := clean(s.Tool, 64), ""
	if s.More > 0 {
		more = fmt.Sprintf(", and %d more", s.More)
	}
	switch s.State {
	case isBehind:
		return "behind " + clean(string(s.Behind), 80)
	case asksHuman:
		return fmt.Sprintf("waits for a person: %s (%s)%s", tool, untilExpiry(messages.Pending{Expires: s.Expires}, now), more)
	case isRunning:
		text := "runs " + tool + " on " + clean(s.Worker, 64)
		if s.Gone {
			text += ", which is not there"
		}
		return text + more
	case isQueued:
		return "queued: " + tool + more
	case isHanded:
		return "queued or running: " + tool + more
	case unserved:
		return "queued: " + tool + more + "; no worker of pool " + clean(s.Pool, 64) + " is there"
	case isEnding:
		return "every call has ended"
	}
	return "not told: " + clean(s.Why, 120)
}

// heading returns the state in a few words.
func (s standing) heading() string {
	switch s.State {
	case asksHuman:
		return "waits for a person"
	case isBehind, isQueued, unserved:
		return "queued"
	case isRunning, isEnding:
		return "running"
	}
	return "queued or running"
}

// standingOf derives a batch's status from its timeline. A question to a person wins over running
// calls, because only a person can resolve it; running wins over queued.
func standingOf(t messages.Timeline) standing {
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
		return standing{State: asksHuman, Tool: r.tool, More: more, Expires: r.asked.Expires}
	}
	if r, more := find(func(r row) bool { return r.running }); r != nil {
		return standing{State: isRunning, Tool: r.tool, More: more, Worker: r.worker}
	}
	if r, more := find(func(row) bool { return true }); r != nil {
		return standing{State: isQueued, Tool: r.tool, More: more}
	}
	return standing{State: isEnding}
}

// surroundings is what is known of the fleet around a batch. With the zero value explain changes
// nothing.
type surroundings struct {
	tools   map[string]schemas.Tool
	workers map[string]bool
	pools   map[string]int // number of workers by pool
}

func newSurroundings(workers []wire.Presence, tools []schemas.Tool) surroundings {
	around := surroundings{tools: map[string]schemas.Tool{}, workers: map[string]bool{}, pools: map[string]int{}}
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

// explain refines a status with the fleet's state: a lost worker, a pool without workers, or a call
// that may be running already.
func (around surroundings) explain(s standing) standing {
	tool, known := around.tools[s.Tool]
	switch {
	case s.State == isRunning && around.workers != nil:
		s.Gone = !around.workers[s.Worker]
	case s.State == isQueued && known:
		s.Pool = tool.Pool
		switch {
		case around.pools[tool.Pool] == 0:
			s.State = unserved
		case tool.Kind != messages.KindWrite:
			s.State = isHanded
		}
	}
	return s
}
