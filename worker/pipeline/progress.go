package pipeline

import (
	"sync"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	// reportEvery is the shortest time between two reports, after the first reportsAtOnce
	// reports of a run.
	reportEvery = 100 * time.Millisecond
	// reportsAtOnce is how many reports a run may send before it is limited to one per
	// reportEvery.
	reportsAtOnce = 10
	// maxReport limits the text of a report, in bytes. A longer text is cut.
	maxReport = 4096
)

// reports limits the rate of a tool's progress reports. If there are too many, only the
// newest is sent. The last report is always sent. Progress never goes backwards: if a
// report has a lower fraction or none, the highest fraction so far is sent. Any goroutine
// may call its methods.
type reports struct {
	emit func(messages.Event)

	mu      sync.Mutex
	highest float64            // highest fraction so far; guarded by mu
	pending *messages.Progress // not sent yet; guarded by mu
	timer   *time.Timer        // runs while a report is pending; guarded by mu
	// nextFree is when the next report may be sent at a rate of one per reportEvery. Up to
	// reportsAtOnce reports may be sent ahead of that time. Guarded by mu.
	nextFree time.Time
	ended    bool // guarded by mu
}

// add receives a report from the tool.
func (r *reports) add(p messages.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended { // a tool that was left behind may still report
		return
	}
	if p.Fraction <= 1 { // false for NaN
		r.highest = max(r.highest, p.Fraction)
	}
	p.Fraction = r.highest
	if p.Text == "" && r.pending != nil {
		p.Text = r.pending.Text
	}
	p.Text = shortened(p.Text)
	r.pending = &p
	if r.timer != nil {
		return
	}
	if wait := time.Until(r.nextFree.Add(-(reportsAtOnce - 1) * reportEvery)); wait > 0 {
		r.timer = time.AfterFunc(wait, r.onTimer)
		return
	}
	r.send()
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

func (r *reports) onTimer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	r.send()
}

// end sends the pending report. Nothing is sent afterwards.
func (r *reports) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.send()
}

// send sends the pending report. The caller holds mu.
func (r *reports) send() {
	if r.pending == nil {
		return
	}
	r.emit(messages.Event{Type: messages.EventProgress, Progress: r.pending})
	r.pending = nil
	if now := time.Now(); r.nextFree.Before(now) {
		r.nextFree = now
	}
	r.nextFree = r.nextFree.Add(reportEvery)
}
