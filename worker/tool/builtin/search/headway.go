package search

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

const (
	headwayAfter = 500 * time.Millisecond // most searches end sooner and report no progress
	headwayEvery = 100 * time.Millisecond
)

// headway is the progress of a search. The total is unknown, so there is no fraction. Any goroutine
// may count.
type headway struct{ looked, found atomic.Int64 }

// tell reports to watchers, whenever a long search has news, how many files it has looked at and
// how many units it has found. The returned function stops it; nothing is reported after that.
func (h *headway) tell(call tool.Call, unit string) (stop func()) {
	if call.Progress == nil {
		return func() {}
	}
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		timer := time.NewTimer(headwayAfter)
		defer timer.Stop()
		for told := h.text(unit); ; timer.Reset(headwayEvery) {
			select {
			case <-done:
				return
			case <-timer.C:
			}
			if text := h.text(unit); text != told {
				call.Progress(messages.Progress{Text: text})
				told = text
			}
		}
	})
	return func() { close(done); telling.Wait() }
}

func (h *headway) text(unit string) string {
	return base.Plural(int(h.looked.Load()), "file") + " looked at, " + base.Plural(int(h.found.Load()), unit) + " found"
}
