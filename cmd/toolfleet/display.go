package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/messages"
)

// redraw is how often a live board is drawn while nothing happens: its clocks go on.
const redraw = 100 * time.Millisecond

// display shows a batch on stderr while it runs: a board that is redrawn on a terminal, lines elsewhere,
// or the events themselves. Whoever else has a line for stderr meanwhile, as the log does, writes it to the display:
// it stands above the board then.
type display struct {
	app    *app
	events bool // as NDJSON
	live   bool
	asks   bool // a person is asked here, so nobody need be told how to answer

	mu    sync.Mutex
	shows func() []boardLine // what is drawn, if not the board; guarded by mu
	heard bool               // of the batch; guarded by mu
	board board              // guarded by mu
	drawn []int              // how long the lines of the board on the screen are; guarded by mu
	asked bool               // a person is being asked, and has the screen to themselves; guarded by mu
	held  []byte             // what was written meanwhile; guarded by mu
	stop  chan struct{}
	ended sync.WaitGroup
	quiet *time.Timer // until it is said that nothing happens
}

// patience is how long nothing may happen before that is said.
const patience = 3 * time.Second

// newDisplay starts to show. close it before anything else is written to stderr.
func newDisplay(a *app, events bool) *display {
	d := &display{app: a, events: events, live: !events && isTerminal(a.stderr) && os.Getenv("TERM") != "dumb", stop: make(chan struct{})}
	d.board.colour = colours(a.stderr)
	if d.live {
		d.ended.Go(d.keepDrawing)
	}
	d.quiet = time.AfterFunc(patience, d.nothingYet)
	return d
}

// tellHow has the display say how the questions of a fleet elsewhere are answered.
func (d *display) tellHow(cfg *config.Config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.board.decide = func(id string) string { return approveCommand(os.Args[0], cfg, id) }
}

// nothingYet tells a person why there is nothing to see.
func (d *display) nothingYet() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.heard && !d.events {
		d.above([]byte("waiting: nobody has begun the batch yet. `toolfleet status` shows the workers, and what waits.\n"))
	}
}

// silent reports whether nothing was heard of the batch while it was waited for.
func (d *display) silent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.heard
}

// take is told every event of the batch.
func (d *display) take(e messages.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = d.heard || e.Type != messages.EventReply && e.Type != messages.EventWaiting
	if d.events {
		d.app.say("%s", messages.MustMarshal(e))
		return
	}
	d.board.apply(e, time.Now())
	line := d.board.plain(e)
	switch {
	case e.Type == messages.EventWaiting:
		d.above(fmt.Appendf(nil, "no coordinator answers any more: the batch goes on once one is back. Ctrl-C ends the waiting; later %s\n", fetches(e.Session, e.Batch)))
	case d.asks && e.Type == messages.EventAwaiting: // the asking itself tells
	case line != "" && (!d.live || e.Type == messages.EventAwaiting):
		d.above([]byte(line + "\n"))
	case d.live:
		d.above(nil)
	}
}

// show has something happen to what is drawn, and puts the lines above it that this is worth.
func (d *display) show(happen func(now time.Time) (lines string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.above([]byte(happen(time.Now())))
}

// Write puts whole lines above the board. It never fails: nobody's work shall end because stderr does.
func (d *display) Write(lines []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.above(lines)
	return len(lines), nil
}

// ask does something with the terminal to itself. The board is gone meanwhile, and what is written waits.
func (d *display) ask(do func()) {
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

// close draws for the last time.
func (d *display) close() {
	d.quiet.Stop()
	close(d.stop)
	d.ended.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.above(nil)
	d.live = false // what is written now stands below
}

func (d *display) keepDrawing() {
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

// above writes lines, and the board anew below them, all at once. It needs mu.
func (d *display) above(lines []byte) {
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

func (d *display) put(out []byte) {
	if len(out) > 0 {
		_, _ = d.app.stderr.Write(out)
	}
}

// erasure takes the board off the screen. It needs mu.
func (d *display) erasure() []byte {
	if len(d.drawn) == 0 {
		return nil
	}
	return fmt.Appendf(nil, "\x1b[%dA\r\x1b[J", d.rows(d.size()))
}

// rows is how many rows of the screen the board takes. One that has become narrower has broken its lines.
func (d *display) rows(width, height int) int {
	rows := 0
	for _, length := range d.drawn {
		rows += max(1, (length+width-1)/width)
	}
	return min(rows, height-1)
}

func (d *display) size() (width, height int) {
	if f, ok := d.app.stderr.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 20 && h > 3 {
			return w, h
		}
	}
	return 80, 24
}

// A line that is longer than we think, for its letters are wide, ends at the edge of the screen while this is in force: a line
// that takes two rows could not be drawn over.
const (
	noWrap = "\x1b[?7l"
	wrap   = "\x1b[?7h"
)

// drawing needs mu. A board is never higher than the screen: what scrolled away cannot be redrawn.
func (d *display) drawing() []byte {
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
	if before > len(lines) { // of a board that has become shorter
		out.WriteString("\x1b[J")
	}
	d.drawn = d.drawn[:0]
	for _, line := range lines {
		d.drawn = append(d.drawn, min(visible(line), width))
	}
	return out.Bytes()
}

// visible is how many letters of a line are seen: what colours it is not.
func visible(line string) int { return utf8.RuneCountInString(uncoloured(line)) }

// inRoom is the lines of a board for a screen that has room for so many. What runs and what people are asked stays as long as it
// can; of the rest it is said how many there are.
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
			if kind.mark != "✓" { // of those that have ended the last are news, of the others the first
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
