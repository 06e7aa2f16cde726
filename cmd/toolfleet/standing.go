package main

import (
	"context"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// standing is what a batch that is open does at this moment, or waits for.
type standing struct {
	State   standingState    `json:"state"`
	Behind  messages.BatchID `json:"behind,omitempty"` // the oldest open batch of the session
	Tool    string           `json:"tool,omitempty"`   // of the call that the state is about
	More    int              `json:"more,omitempty"`   // calls of which the same is so
	Worker  string           `json:"worker,omitempty"`
	Gone    bool             `json:"worker_gone,omitempty"` // nothing is heard of that worker
	Pool    string           `json:"pool,omitempty"`
	Expires time.Time        `json:"expires,omitzero"`
	Why     string           `json:"why,omitempty"` // of untold
}

type standingState string

// The states of a batch that is open. That a call of a read runs is on no record, so nobody can tell that from waiting for a worker.
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

// heading is the state in one or two words.
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

// standingOf is how a batch stands by its timeline. What people are asked comes first: nobody else can help with it.
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

// surroundings is what is known of the fleet around a batch. The zero value knows nothing.
type surroundings struct {
	tools   map[string]schemas.Tool
	workers map[string]bool
	crews   map[string]int // workers of each pool
}

func lookAround(ctx context.Context, conn *bus.Conn) (around surroundings, err error) {
	workers, err := readBucket[messages.Presence](ctx, conn, bus.BucketWorkers)
	if err != nil {
		return around, err
	}
	tools, err := readBucket[schemas.Tool](ctx, conn, bus.BucketTools)
	if err != nil {
		return around, err
	}
	around = surroundings{tools: map[string]schemas.Tool{}, workers: map[string]bool{}, crews: map[string]int{}}
	for _, w := range workers {
		around.workers[w.Worker] = true
	}
	for _, p := range poolsOf(workers, tools) {
		around.crews[p.Pool] = p.Workers
	}
	for _, t := range tools {
		around.tools[t.Name] = t
	}
	return around, nil
}

// explain adds to a standing what the fleet around it says.
func (around surroundings) explain(s standing) standing {
	tool, known := around.tools[s.Tool]
	switch {
	case s.State == isRunning && around.workers != nil:
		s.Gone = !around.workers[s.Worker]
	case s.State == isQueued && known:
		s.Pool = tool.Pool
		switch {
		case around.crews[tool.Pool] == 0:
			s.State = unserved
		case tool.Kind != messages.Write:
			s.State = isHanded
		}
	}
	return s
}
