package progress

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// redraw is how often a live board is drawn without an event, so that its clocks advance.
const redraw = 100 * time.Millisecond

// Display shows a running batch: on a terminal as a board that is redrawn, elsewhere as lines, or
// as events in NDJSON. Other writers to stderr, such as the log, must write to the display instead:
// their lines then appear above the board.
type Display struct {
	out    io.Writer // the terminal or a log; guarded by mu
	events bool      // write the events as NDJSON
	live   bool
	asks   bool // a person is prompted at this terminal, so the board does not say how to answer

	mu sync.Mutex
	// Returns the lines that are drawn instead of the board; nil: draw the board; guarded by mu.
	shows func() []boardLine
	heard bool   // an event of the batch came; guarded by mu
	board board  // guarded by mu
	drawn []int  // lengths of the board's lines on the screen; guarded by mu
	asked bool   // a prompt owns the screen; guarded by mu
	held  []byte // what was written during a prompt; guarded by mu
	stop  chan struct{}
	ended sync.WaitGroup
	// quiet fires when patience is over; nil: nobody expects events; guarded by mu.
	quiet  *time.Timer
	closed bool // guarded by mu
}

// patience is how long a batch may wait before the display says why.
const patience = 3 * time.Second

// NewDisplay starts to show a batch on out. With events it writes them as NDJSON. The caller closes
// the display before it writes anything else to out.
func NewDisplay(out io.Writer, events bool) *Display {
	d := &Display{out: out, events: events, live: !events && terminal.IsTerminal(out) && os.Getenv("TERM") != "dumb", stop: make(chan struct{})}
	d.board.colour = terminal.Colours(out)
	if d.live {
		d.ended.Go(d.keepDrawing)
	}
	return d
}

// SetApproveCommand makes the display name the command that approves a question, for a fleet in
// another process. command returns it for the first characters of the question's id.
func (d *Display) SetApproveCommand(command func(id string) string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.board.decide = command
}

// PromptsHere makes the display leave out how to answer a question, because a person is prompted
// for it at this terminal. The caller calls it before the first event.
func (d *Display) PromptsHere() { d.asks = true }

// Live reports whether a board is redrawn. False after Close.
func (d *Display) Live() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live
}

// ExpectEvents makes the display say why a batch waits, if no call has begun for 3 s. why
// returns the reason, or "" if it knows none. The display calls why every 3 s until it returns
// a reason or a call begins. In NDJSON the reason is an event of the type waiting. The caller
// calls ExpectEvents at most once, before the first event.
func (d *Display) ExpectEvents(session messages.SessionID, batch messages.BatchID, why func() string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	told := false
	d.quiet = time.AfterFunc(patience, func() {
		if d.begun() {
			return
		}
		text := why()
		d.mu.Lock()
		defer d.mu.Unlock()
		switch {
		case d.closed:
			return
		case text == "":
			d.quiet.Reset(patience)
			if told || d.heard {
				return
			}
			told, text = true, "nobody has begun the batch yet. `toolfleet status` shows the workers, and what waits."
		}
		if d.events {
			d.event(messages.Event{V: messages.Version, Type: messages.EventWaiting, Session: session, Batch: batch, Index: -1, Time: time.Now(),
				Progress: &messages.Progress{Text: text}})
			return
		}
		d.above([]byte("waiting: " + text + "\n"))
	})
}

// event writes an event. The caller holds mu.
func (d *Display) event(e messages.Event) { fmt.Fprintf(d.out, "%s\n", rawjson.MustMarshal(e)) }

// begun reports whether a call has begun or ended, or a person is asked.
func (d *Display) begun() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.board.calls, func(c callState) bool { return c.running || c.asked != nil || c.result != nil })
}

// ShowSession makes the display draw the boards of a session in place of the board of one batch.
func (d *Display) ShowSession(s *Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shows = s.lines
}

// SetOutput makes the display write to out from now on.
func (d *Display) SetOutput(out io.Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out = out
}

// Silent reports whether no event has come, apart from waiting and the reply.
func (d *Display) Silent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.heard
}

// Take shows one event of the batch.
func (d *Display) Take(e messages.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = d.heard || e.Type != messages.EventReply && e.Type != messages.EventWaiting
	d.board.apply(e, time.Now())
	if d.events {
		d.event(e)
		return
	}
	line := d.board.plain(e)
	switch {
	case e.Type == messages.EventWaiting:
		d.above(fmt.Appendf(nil, "no coordinator answers any more: the batch goes on once one is back. Ctrl-C ends the waiting; later %s\n", FetchHint(e.Session, e.Batch)))
	case d.asks && e.Type == messages.EventAwaiting: // the prompt shows it
	case line != "" && (!d.live || e.Type == messages.EventAwaiting):
		d.above([]byte(line + "\n"))
	case d.live:
		d.above(nil)
	}
}

// Show calls change while it holds mu, so change may alter what is drawn. The lines that
// change returns appear above the board.
func (d *Display) Show(change func(now time.Time) (lines string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.above([]byte(change(time.Now())))
}

// Write writes whole lines above the board. It never fails, so that a broken stderr does not end
// the work.
func (d *Display) Write(lines []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.above(lines)
	return len(lines), nil
}

// WithPrompt calls do, which may use the terminal. Until do returns, the board is not on the
// screen, and lines of other writers are held.
func (d *Display) WithPrompt(do func()) {
	d.mu.Lock()
	d.put(d.erasure())
	d.drawn, d.asked = nil, true
	d.mu.Unlock()
	do()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = false
	held := d.held
	d.held = nil
	d.above(held)
}

// Close stops the redrawing and draws the board for the last time.
func (d *Display) Close() {
	close(d.stop)
	d.ended.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.above(nil)
	if d.closed = true; d.quiet != nil {
		d.quiet.Stop()
	}
	d.live = false // later lines appear below the board
}

func (d *Display) keepDrawing() {
	ticks := time.NewTicker(redraw)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			_, _ = d.Write(nil)
		case <-d.stop:
			return
		}
	}
}

// above writes lines and the board below them, in one write. During a prompt it holds the lines.
// The caller holds mu.
func (d *Display) above(lines []byte) {
	switch {
	case d.asked:
		d.held = append(d.held, lines...)
		return
	case !d.live:
		d.put(lines)
		return
	}
	var out []byte
	if len(lines) > 0 {
		out = append(d.erasure(), lines...)
		d.drawn = nil
	}
	d.put(append(out, d.drawing()...))
}

func (d *Display) put(out []byte) {
	if len(out) > 0 {
		_, _ = d.out.Write(out)
	}
}

// erasure returns the escapes that take the board off the screen. The caller holds mu.
func (d *Display) erasure() []byte {
	if len(d.drawn) == 0 {
		return nil
	}
	return fmt.Appendf(nil, "\x1b[%dA\r\x1b[J", d.rows(d.size()))
}

// rows returns how many rows of the screen the drawn board takes. If the screen has become
// narrower since, a line of the board may take several rows. The caller holds mu.
func (d *Display) rows(width, height int) int {
	rows := 0
	for _, length := range d.drawn {
		rows += max(1, (length+width-1)/width)
	}
	return min(rows, height-1)
}

func (d *Display) size() (width, height int) {
	if f, ok := d.out.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 20 && h > 3 {
			return w, h
		}
	}
	return 80, 24
}

// The escapes that switch line wrapping off and on. Without wrapping, a line ends at the edge
// of the screen even if its letters are wider than counted. A line that takes two rows could
// not be drawn over.
const (
	noWrap = "\x1b[?7l"
	wrap   = "\x1b[?7h"
)

// drawing returns the bytes that draw the board over the previous one. The board is never higher
// than the screen, because lines that have scrolled away cannot be redrawn. The caller holds mu.
func (d *Display) drawing() []byte {
	width, height := d.size()
	shows := d.board.lines
	if d.shows != nil {
		shows = d.shows
	}
	lines := inRoom(shows(), height-1, time.Now(), width)
	if len(lines) == 0 && len(d.drawn) == 0 {
		return nil
	}
	var out bytes.Buffer
	before := d.rows(width, height)
	if before > len(d.drawn) {
		out.Write(d.erasure())
	} else if before > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", before)
	}
	out.WriteString(noWrap)
	for _, line := range lines {
		out.WriteString("\r\x1b[K" + line + "\n")
	}
	out.WriteString(wrap)
	if before > len(lines) { // the board became shorter: erase its old end
		out.WriteString("\x1b[J")
	}
	d.drawn = d.drawn[:0]
	for _, line := range lines {
		d.drawn = append(d.drawn, min(visible(line), width))
	}
	return out.Bytes()
}

// visible returns how many letters of a line are visible, without colour codes.
func visible(line string) int { return utf8.RuneCountInString(uncoloured(line)) }

// inRoom draws at most `most` lines of a board. If the board has more lines, it hides calls in
// this order: ok, queued, failed, running, waiting for an approval. The last line counts the
// hidden calls by state.
func inRoom(lines []boardLine, most int, now time.Time, width int) []string {
	if len(lines) <= most {
		return draw(lines, now, width)
	}
	kinds := []struct{ mark, word string }{{"✓", "ok"}, {"·", "queued"}, {"✗", "not ok"}, {"▸", "running"}}
	hidden, hide := make([]bool, len(lines)), len(lines)-most+1
	var said []string
	for _, kind := range kinds {
		n := 0
		for i := range lines {
			if kind.mark != "✓" { // hide ok calls from the front, the others from the end
				i = len(lines) - 1 - i
			}
			if hide > 0 && lines[i].mark() == kind.mark {
				hidden[i] = true
				hide--
				n++
			}
		}
		if n > 0 {
			said = append(said, fmt.Sprintf("%d %s", n, kind.word))
		}
	}
	var kept []boardLine
	for i, l := range lines {
		if !hidden[i] {
			kept = append(kept, l)
		}
	}
	kept = kept[max(0, len(kept)-most+1):]
	return append(draw(kept, now, width), "  … and "+cmp.Or(strings.Join(said, ", "), "more"))
}

func draw(lines []boardLine, now time.Time, width int) []string {
	drawn := make([]string, len(lines))
	for i, l := range lines {
		drawn[i] = l.draw(now, width)
	}
	return drawn
}

var colouring = regexp.MustCompile("\x1b\\[[0-9]*m")

func uncoloured(line string) string { return colouring.ReplaceAllString(line, "") }

// FetchHint names the command that fetches the reply of a batch.
func FetchHint(s messages.SessionID, b messages.BatchID) string {
	return fmt.Sprintf("`toolfleet batch get %s --session %s` fetches its reply", terminal.Clean(string(b), 80), terminal.Clean(string(s), 80))
}
