package builtin

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

const (
	headwayAfter = 500 * time.Millisecond // most searches end sooner, and tell nothing
	headwayEvery = 100 * time.Millisecond
)

// headway is how far a search is. How far it has to go nobody knows, so there is no fraction. Any goroutine may count.
type headway struct{ looked, found atomic.Int64 }

// tell tells whoever watches how many files were looked at, and how many of these units were found, whenever there is news
// of a search that takes long. It returns how to stop: nothing is told after that.
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
	return plural(int(h.looked.Load()), "file") + " looked at, " + plural(int(h.found.Load()), unit) + " found"
}
