package terminaltest

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// Terminal is a pseudo-terminal; the test plays the person.
type Terminal struct {
	Tool *os.File // the end that the tested code reads and writes

	t      *testing.T
	person *os.File // the end of the person

	mu     sync.Mutex
	screen bytes.Buffer  // guarded by mu
	seen   int           // length of the part that Expect has matched; guarded by mu
	more   chan struct{} // a signal to look at the screen again
}

// New opens a pseudo-terminal until the end of the test. It skips the test if the system has none.
func New(t *testing.T) *Terminal {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	var unlock, number int32
	for request, arg := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlock, syscall.TIOCGPTN: &number} {
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, person.Fd(), request, uintptr(unsafe.Pointer(arg))); e != 0 {
			t.Fatal(e)
		}
	}
	tool, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &Terminal{Tool: tool, t: t, person: person, more: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		term.read()
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("on the screen:\n%s", term.Text())
		}
		_, _ = person.WriteString("\n") // ends a read that a failed test left behind
		_ = tool.Close()
		<-ended
		_ = person.Close()
	})
	return term
}

func (s *Terminal) read() {
	part := make([]byte, 4096)
	for {
		n, err := s.person.Read(part)
		s.mu.Lock()
		s.screen.Write(part[:n])
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
		if err != nil { // the other end is closed
			return
		}
	}
}

// Text returns all that was written to the terminal.
func (s *Terminal) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.String()
}

// Expect waits until a text appears on the screen after the last text that Expect has matched.
func (s *Terminal) Expect(text string) {
	s.t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		at := bytes.Index(s.screen.Bytes()[s.seen:], []byte(text))
		if at >= 0 {
			s.seen += at + len(text)
		}
		s.mu.Unlock()
		if at >= 0 {
			return
		}
		select {
		case <-s.more:
		case <-deadline.C:
			s.t.Fatalf("%q does not appear", text)
		}
	}
}

// Type types a text; a line ends with "\n".
func (s *Terminal) Type(text string) {
	s.t.Helper()
	if _, err := s.person.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

var control = regexp.MustCompile(`^\x1b\[\??([0-9;]*)([A-Za-z])`)

// Rows returns the lines of an unlimited screen after the whole text was printed to it.
func Rows(text string) (lines []string) {
	screen, row, column := [][]rune{nil}, 0, 0
	for len(text) > 0 {
		if m := control.FindStringSubmatch(text); m != nil {
			text = text[len(m[0]):]
			switch n, _ := strconv.Atoi(m[1]); m[2] {
			case "A":
				row = max(0, row-n)
			case "J":
				screen = screen[:row+1]
				fallthrough
			case "K":
				screen[row] = screen[row][:min(column, len(screen[row]))]
			}
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch r {
		case '\r':
			column = 0
		case '\n':
			if row++; row == len(screen) {
				screen = append(screen, nil)
			}
		default:
			for len(screen[row]) <= column {
				screen[row] = append(screen[row], ' ')
			}
			screen[row][column] = r
			column++
		}
	}
	for _, line := range screen {
		if text := strings.TrimRight(string(line), " "); text != "" {
			lines = append(lines, text)
		}
	}
	return lines
}
