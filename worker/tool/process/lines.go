package process

import (
	"bytes"
	"strings"
	"sync"
	"time"
)

// Limits of the reports of a running command.
const (
	// ReportEvery is the shortest time between two reports of a command's output.
	ReportEvery = 200 * time.Millisecond
	// MaxReport limits one report, in bytes. If a report is longer, only its newest bytes
	// are sent.
	MaxReport = 2000
)

// Lines turns chunks of output into reports for watchers. The first line is reported at
// once. After that, the new lines are reported at most every [ReportEvery]. Only whole
// lines are reported before [Lines.Flush]. If the new lines are longer than [MaxReport]
// bytes, only their newest [MaxReport] bytes are reported. Any goroutine may call the
// methods of Lines.
type Lines struct {
	report func(text string)

	mu      sync.Mutex
	pending []byte      // not reported yet; guarded by mu
	timer   *time.Timer // runs while a report is pending; guarded by mu
	last    time.Time   // time of the last report; guarded by mu
	done    bool        // Flush was called; guarded by mu
}

// NewLines returns Lines that call report, which must not block. A nil report reports nothing.
func NewLines(report func(text string)) *Lines {
	if report == nil {
		report = func(string) {}
	}
	return &Lines{report: report}
}

// Add adds the next chunk. It does not keep the slice.
func (l *Lines) Add(chunk []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, chunk...)
	if over := len(l.pending) - 2*MaxReport; over > 0 {
		l.pending = append(l.pending[:0], l.pending[over:]...)
	}
	if l.done || l.timer != nil || bytes.IndexByte(l.pending, '\n') < 0 {
		return
	}
	if wait := ReportEvery - time.Since(l.last); wait > 0 {
		l.timer = time.AfterFunc(wait, l.due)
		return
	}
	l.emit(false)
}

func (l *Lines) due() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer = nil
		l.emit(false)
	}
}

// Flush reports the rest. Nothing is reported after it has returned.
func (l *Lines) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if !l.done {
		l.emit(true)
	}
	l.done = true
}

// emit reports the pending whole lines. With all it also reports the unfinished line. The
// caller holds mu.
func (l *Lines) emit(all bool) {
	end := len(l.pending)
	if !all {
		end = bytes.LastIndexByte(l.pending, '\n') + 1
	}
	text := strings.ToValidUTF8(strings.TrimRight(string(l.pending[max(0, end-MaxReport):end]), "\n"), "\uFFFD")
	l.pending = append(l.pending[:0], l.pending[end:]...)
	if text != "" {
		l.last = time.Now()
		l.report(text)
	}
}
