package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
	"unicode/utf8"
)

// Output is what a stream carried: all of it, or its head and tail if it exceeded the
// limit.
type Output struct {
	Head, Tail []byte
	Dropped    int64 // bytes left out between Head and Tail
	// DroppedLines counts the line breaks in the dropped bytes. DroppedChars counts the
	// characters that begin in the dropped bytes.
	DroppedLines, DroppedChars int
}

// Bytes returns the output. If bytes were dropped, a line in their place says how many.
func (o Output) Bytes() []byte {
	if o.Dropped == 0 {
		return append(o.Head[:len(o.Head):len(o.Head)], o.Tail...)
	}
	cut := fmt.Appendf(o.Head[:len(o.Head):len(o.Head)], "\n[... %d bytes left out ...]\n", o.Dropped)
	return append(cut, o.Tail...)
}

// outputBuffer keeps the head and the tail of an output, up to a limit. It allocates memory
// only for what it holds.
type outputBuffer struct {
	maxHead, maxTail int // bytes
	head             []byte
	tail             []byte // a ring of the newest bytes; it may not be full yet
	next             int    // index of the oldest byte of the ring; the next byte replaces it
	lost             Output // counts of the dropped bytes
}

func newOutputBuffer(limit int, tailOnly bool) *outputBuffer {
	if limit <= 0 {
		limit = defaultLimit
	}
	limit = min(limit, maxLimit)
	if tailOnly {
		return &outputBuffer{maxTail: limit}
	}
	half := max(limit/2, 1)
	return &outputBuffer{maxHead: half, maxTail: half}
}

func (k *outputBuffer) add(p []byte) {
	n := min(k.maxHead-len(k.head), len(p))
	k.head = append(k.head, p[:n]...)
	p = p[n:]
	n = min(k.maxTail-len(k.tail), len(p))
	k.tail = append(k.tail, p[:n]...)
	p = p[n:]
	for len(p) > 0 { // the ring is full: new bytes replace the oldest
		n := min(k.maxTail-k.next, len(p))
		k.drop(k.tail[k.next : k.next+n])
		copy(k.tail[k.next:], p[:n])
		k.next = (k.next + n) % k.maxTail
		p = p[n:]
	}
}

func (k *outputBuffer) drop(p []byte) {
	k.lost.Dropped += int64(len(p))
	k.lost.DroppedLines += bytes.Count(p, []byte("\n"))
	for _, b := range p {
		if utf8.RuneStart(b) {
			k.lost.DroppedChars++
		}
	}
}

func (k *outputBuffer) output() Output {
	o := k.lost
	o.Head, o.Tail = k.head, append(k.tail[k.next:len(k.tail):len(k.tail)], k.tail[:k.next]...)
	return o
}

// pipes holds this process's ends of the command's streams, and the goroutines that serve them.
type pipes struct {
	stdin          *os.File // nil: no input
	stdout, stderr *os.File // stderr is nil if it is merged into stdout
	progress       *os.File // nil: no OnProgress
	childEnds      []*os.File
	out, err       *outputBuffer
	wg             sync.WaitGroup
}

// connect makes the pipes and connects the command to them.
func connect(cmd *exec.Cmd, c Command) (*pipes, error) {
	p := &pipes{out: newOutputBuffer(c.Limit, c.TailOnly), err: newOutputBuffer(c.LimitStderr, c.TailOnly)}
	if c.StdinFile != nil {
		p.childEnds = append(p.childEnds, c.StdinFile)
		cmd.Stdin = c.StdinFile
	}
	open := func(read **os.File, write **os.File) error {
		r, w, err := os.Pipe()
		if err != nil {
			p.abandon()
			return err
		}
		*read, *write = r, w
		return nil
	}
	var in, out *os.File
	if err := open(&p.stdout, &out); err != nil {
		return nil, err
	}
	p.childEnds = append(p.childEnds, out)
	cmd.Stdout, cmd.Stderr = out, out
	if !c.Merge {
		var errs *os.File
		if err := open(&p.stderr, &errs); err != nil {
			return nil, err
		}
		p.childEnds = append(p.childEnds, errs)
		cmd.Stderr = errs
	}
	if c.OnProgress != nil && runtime.GOOS != "windows" {
		var far *os.File
		if err := open(&p.progress, &far); err != nil {
			return nil, err
		}
		p.childEnds = append(p.childEnds, far)
		cmd.ExtraFiles = []*os.File{far}
	}
	if len(c.Stdin) > 0 {
		if err := open(&in, &p.stdin); err != nil {
			return nil, err
		}
		p.childEnds = append(p.childEnds, in)
		cmd.Stdin = in
	}
	return p, nil
}

// begin serves the streams of a command that was just started.
func (p *pipes) begin(c Command) {
	closeAll(p.childEnds)
	p.childEnds = nil
	p.read(p.stdout, p.out.add, c.OnStdout)
	if p.stderr != nil {
		p.read(p.stderr, p.err.add, c.OnStderr)
	}
	if p.progress != nil {
		p.read(p.progress, c.OnProgress, nil)
	}
	if p.stdin != nil {
		p.wg.Go(func() {
			// Ignore a broken pipe, because a command need not read its input.
			_, _ = p.stdin.Write(c.Stdin)
			_ = p.stdin.Close()
		})
	}
}

func (p *pipes) read(from *os.File, to, observe func([]byte)) {
	p.wg.Go(func() {
		buf := make([]byte, 32<<10)
		for late := false; ; {
			n, err := from.Read(buf)
			if n > 0 {
				to(buf[:n])
				if observe != nil {
					observe(buf[:n])
				}
			}
			switch {
			case err == nil, errors.Is(err, io.ErrNoProgress):
			case errors.Is(err, os.ErrDeadlineExceeded) && !late:
				// If the machine was stopped for a while, the deadline may have passed while
				// output is still in the pipe. Read once more.
				late = true
				_ = from.SetReadDeadline(time.Now().Add(drain / 2))
			default:
				return
			}
		}
	})
}

// finish reads the rest of the output and ends all goroutines. It takes at most the time
// within plus half of drain.
func (p *pipes) finish(within time.Duration) (stdout, stderr Output) {
	deadline := time.Now().Add(within)
	for _, f := range []*os.File{p.stdout, p.stderr, p.progress} {
		if f != nil {
			_ = f.SetReadDeadline(deadline)
		}
	}
	if p.stdin != nil {
		_ = p.stdin.SetWriteDeadline(deadline)
	}
	p.wg.Wait()
	p.abandon()
	return p.out.output(), p.err.output()
}

// abandon closes everything. Closing twice does no harm.
func (p *pipes) abandon() {
	closeAll(p.childEnds)
	closeAll([]*os.File{p.stdin, p.stdout, p.stderr, p.progress})
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
