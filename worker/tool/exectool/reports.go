package exectool

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
)

// maxReport limits a progress line, in bytes. A longer line is dropped.
const maxReport = 4096

// linesAtOnce is how many lines of one chunk are read: the newest ones. Older lines would not
// be sent, because a call sends only a few reports a second.
const linesAtOnce = 16

// reports reads the progress that a program writes to its progress descriptor. Each line is
// a report. It is plain text or a JSON object {"fraction":0.4,"text":"..."}, in which
// either member may be missing. Other lines are dropped, because a program that reports
// badly may still work well. Any goroutine may call its methods.
type reports struct {
	emit func(messages.Progress)

	mu   sync.Mutex
	line []byte // the beginning of the next line; guarded by mu
	long bool   // the line is too long; guarded by mu
}

func newReports(emit func(messages.Progress)) *reports { return &reports{emit: emit} }

// Add reads the next chunk that the program wrote. It does not keep the slice.
func (r *reports) Add(chunk []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if skipped := beforeLast(chunk, linesAtOnce); skipped > 0 {
		chunk, r.line, r.long = chunk[skipped:], r.line[:0], false
	}
	for len(chunk) > 0 {
		part, rest, ends := bytes.Cut(chunk, []byte("\n"))
		if r.long = r.long || len(r.line)+len(part) > maxReport; !r.long {
			r.line = append(r.line, part...)
		}
		chunk = rest
		if ends {
			r.emitLine()
		}
	}
}

// beforeLast returns how many bytes of a chunk come before its last n whole lines.
func beforeLast(chunk []byte, n int) int {
	at := len(chunk)
	for range n + 1 {
		if at = bytes.LastIndexByte(chunk[:at], '\n'); at < 0 {
			return 0
		}
	}
	return at + 1
}

// Flush reads the last line if it has no line end.
func (r *reports) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.emitLine()
}

// emitLine reports the line that has ended. The caller holds mu.
func (r *reports) emitLine() {
	if p, ok := report(r.line); ok && !r.long {
		r.emit(p)
	}
	r.line, r.long = r.line[:0], false
}

// report parses one line. ok is false if the line is no report.
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
