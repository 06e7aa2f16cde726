package pipeline

import (
	"sync"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	// reportEvery is how much time must pass for each report that is sent to watchers.
	reportEvery = 100 * time.Millisecond
	// reportsAtOnce is how many reports a run may send before any time has passed.
	reportsAtOnce = 10
	// maxReport bounds the text of a report, in bytes. A longer text is cut.
	maxReport = 4096
)

// reports limits the rate of a tool's progress reports. When there are too many, only the newest is
// sent, and the last one is always sent. Progress never goes back: a report with a lower fraction,
// or none, repeats the highest one so far. Its methods may be called from any goroutine.
type reports struct {
	tell func(messages.Event)

	mu    sync.Mutex
	far   float64            // the highest fraction so far; guarded by mu
	owed  *messages.Progress // reported but not sent yet; guarded by mu
	timer *time.Timer        // runs while a report is owed; guarded by mu
	// free is when reportEvery has passed for every report that was sent; guarded by mu.
	free time.Time
	over bool // guarded by mu
}

// add is for the tool to call.
func (r *reports) add(p messages.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over { // a tool that was left behind may still report
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

// shortened cuts a text to maxReport bytes without splitting a character.
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

// end sends the report that is owed. Nothing is sent after it has returned.
func (r *reports) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.pay()
}

// pay sends the report that is owed. The caller holds mu.
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
