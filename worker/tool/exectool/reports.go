package exectool

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	// reportEvery is the shortest time between two reports that reach whoever watches.
	reportEvery = 100 * time.Millisecond
	// maxReport is how many bytes a line may have. A longer one is dropped.
	maxReport = 4096
)

// reports reads what a program writes to its progress descriptor, a report on each line: a JSON object
// {"fraction":0.4,"text":"..."}, either of which may be missing, or plain text. A line that is neither is dropped: a program that
// reports badly still does its work. Of many reports in a short time the newest is told, and in the end the last
// one always is. Its methods may be called from any goroutine.
type reports struct {
	tell func(messages.Progress)

	mu    sync.Mutex
	line  []byte             // the beginning of the next; guarded by mu
	long  bool               // that line is too long; guarded by mu
	owed  *messages.Progress // read and not told yet; guarded by mu
	timer *time.Timer        // runs while a report is owed; guarded by mu
	last  time.Time          // when a report was told; guarded by mu
}

func newReports(tell func(messages.Progress)) *reports { return &reports{tell: tell} }

// Add takes the next piece of what the program wrote. It does not keep the slice.
func (r *reports) Add(chunk []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(chunk) > 0 {
		part, rest, ends := bytes.Cut(chunk, []byte("\n"))
		if r.long = r.long || len(r.line)+len(part) > maxReport; !r.long {
			r.line = append(r.line, part...)
		}
		chunk = rest
		if ends {
			r.take()
		}
	}
	if r.owed == nil || r.timer != nil {
		return
	}
	if wait := reportEvery - time.Since(r.last); wait > 0 {
		r.timer = time.AfterFunc(wait, r.due)
		return
	}
	r.pay()
}

// take reads the line that has ended. It needs mu.
func (r *reports) take() {
	p, ok := report(r.line)
	ok = ok && !r.long
	r.line, r.long = r.line[:0], false
	if !ok {
		return
	}
	if r.owed != nil { // what the newer one leaves open the older one said
		if p.Fraction == 0 {
			p.Fraction = r.owed.Fraction
		}
		if p.Text == "" {
			p.Text = r.owed.Text
		}
	}
	r.owed = &p
}

func (r *reports) due() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	r.pay()
}

// Flush takes a last line that has no end, tells what is owed, and ends: nothing is told after it returned.
func (r *reports) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.take()
	r.pay()
}

// pay tells what is owed. It needs mu.
func (r *reports) pay() {
	if r.owed != nil {
		r.tell(*r.owed)
		r.owed, r.last = nil, time.Now()
	}
}

// report reads one line.
func report(line []byte) (p messages.Progress, ok bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return p, false
	}
	if line[0] != '{' {
		p.Text = strings.ToValidUTF8(string(line), "\uFFFD")
		return p, true
	}
	if !utf8.Valid(line) || json.Unmarshal(line, &p) != nil {
		return p, false
	}
	return p, p.Fraction >= 0 && p.Fraction <= 1 && (p.Fraction > 0 || p.Text != "")
}
