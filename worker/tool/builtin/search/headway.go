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
	headwayAfter = 500 * time.Millisecond // most searches take less time, and report no progress
	headwayEvery = 100 * time.Millisecond
)

// headway counts the progress of a search. There is no fraction, because the number of
// files is unknown. Any goroutine may count.
type headway struct{ looked, found atomic.Int64 }

// tell reports during a long search how many files were searched and how many matches were
// found, whenever this has changed. unit is the word for a match. After stop nothing is
// reported.
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
