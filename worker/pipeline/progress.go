package pipeline

import (
	"sync"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	// reportEvery is how much time a run has to let pass for each report that reaches whoever watches.
	reportEvery = 100 * time.Millisecond
	// reportsAtOnce is how many reports a run may make before it has let any time pass.
	reportsAtOnce = 10
	// maxReport is how many bytes the text of a report may have. The rest of a longer one is not told.
	maxReport = 4096
)

// reports are what the tool of a run says of how far it is. Of too many the newest is told, and in the end the last one
// always is. How far a run is never goes back: a report that says less, or nothing, or no fraction at all, repeats what
// was said. Its methods may be called from any goroutine.
type reports struct {
	tell func(messages.Event)

	mu    sync.Mutex
	far   float64            // the highest fraction so far; guarded by mu
	owed  *messages.Progress // reported and not told yet; guarded by mu
	timer *time.Timer        // runs while a report is owed; guarded by mu
	free  time.Time          // when every report that was told has had its time; guarded by mu
	over  bool               // guarded by mu
}

// add is for the tool to call.
func (r *reports) add(p messages.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over { // a tool that was left behind is heard no more
		return
	}
	if p.Fraction <= 1 { // not NaN
		r.far = max(r.far, p.Fraction)
	}
	p.Fraction = r.far
	if p.Text == "" && r.owed != nil {
		p.Text = r.owed.Text
	}
	p.Text = shortened(p.Text)
	r.owed = &p
	if r.timer != nil {
		return
	}
	if wait := time.Until(r.free.Add(-(reportsAtOnce - 1) * reportEvery)); wait > 0 {
		r.timer = time.AfterFunc(wait, r.due)
		return
	}
	r.pay()
}

// shortened is a text of at most maxReport bytes, which ends with a whole letter.
func shortened(text string) string {
	n := maxReport
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

func (r *reports) due() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	r.pay()
}

// end tells what is owed. Nothing is told after it returned.
func (r *reports) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.pay()
}

// pay tells what is owed. It needs mu.
func (r *reports) pay() {
	if r.owed == nil {
		return
	}
	r.tell(messages.Event{Type: messages.EventProgress, Progress: r.owed})
	r.owed = nil
	if now := time.Now(); r.free.Before(now) {
		r.free = now
	}
	r.free = r.free.Add(reportEvery)
}
