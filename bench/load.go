package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load describes the work: sessions that run at once. Each submits its next batch when the last one
// is answered.
type load struct {
	sessions      int
	reads, writes int
	sleep         time.Duration // of a read
	bytes         int           // of the input of a call, which is also its output
	// pause is the time between the answer of a batch and the next one of the session.
	pause time.Duration
}

func (l load) calls() int { return l.reads + l.writes }

// input returns the input of a call.
func (l load) input() string { return strings.Repeat("x", l.bytes) }

// submit runs one batch of a session and returns when it has all results and has checked them. n is
// different for each batch.
type submit func(ctx context.Context, l load, session int, n uint64) error

// sample holds the measurements of one slice.
type sample struct {
	calls  int
	wall   time.Duration
	took   []time.Duration    // of each batch, sorted
	cpu    map[string]float64 // seconds, by role
	others float64            // share of the machine that other programs used
}

// patience bounds the time of one batch. After it the measurement fails.
const patience = 2 * time.Minute

// batches numbers the batches of this process.
var batches atomic.Uint64

// slice runs the load for d and then until all batches are answered. Each session runs at least one
// batch.
func (f *fleet) slice(l load, d time.Duration) (sample, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+patience)
	defer cancel()
	took := make([][]time.Duration, l.sessions)
	errs := make([]error, l.sessions)
	cpu, busy := f.cpu(), machineBusy()
	began := time.Now()
	var working sync.WaitGroup
	for session := range l.sessions {
		working.Go(func() {
			for {
				start := time.Now()
				if errs[session] = f.submit(ctx, l, session, batches.Add(1)); errs[session] != nil {
					cancel()
					return
				}
				took[session] = append(took[session], time.Since(start))
				time.Sleep(l.pause)
				if time.Since(began) > d {
					return
				}
			}
		})
	}
	working.Wait()
	s := sample{wall: time.Since(began), took: slices.Concat(took...), cpu: f.cpu()}
	if err := firstOf(errs); err != nil {
		return s, fmt.Errorf("%d sessions: %w\n%s", l.sessions, err, f.logs())
	}
	slices.Sort(s.took)
	s.calls = len(s.took) * l.calls()
	ours := 0.0
	for role := range s.cpu {
		s.cpu[role] -= cpu[role]
		ours += s.cpu[role]
	}
	s.others = max(0, (machineBusy()-busy-ours)/(s.wall.Seconds()*float64(processors)))
	return s, nil
}

// firstOf returns an error that does not follow from another one, if there is one.
func firstOf(errs []error) error {
	var consequence error
	for _, err := range errs {
		switch {
		case errors.Is(err, context.Canceled):
			consequence = err
		case err != nil:
			return err
		}
	}
	return consequence
}

// mailboxes pass answers to the sessions that wait for them.
type mailboxes struct{ boxes sync.Map } // int to chan []byte

func (m *mailboxes) of(session int) chan []byte {
	box, ok := m.boxes.Load(session)
	if !ok {
		box, _ = m.boxes.LoadOrStore(session, make(chan []byte, 8))
	}
	return box.(chan []byte)
}

// await returns the first answer of a session that is wanted.
func (m *mailboxes) await(ctx context.Context, session int, wanted func([]byte) (bool, error)) error {
	for {
		select {
		case body := <-m.of(session):
			if ok, err := wanted(body); ok || err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Contestants other than toolfleet speak in frames: a head, then inputs or outputs, each after its
// length. A batch has all inputs, a job has one, a result has one output, a reply has all outputs.
type frame struct {
	head
	parts [][]byte
}

type head struct {
	Batch         uint64
	Session       uint32
	Reads, Writes uint16
	Index         uint16 // of the call that a job or a result is about
	SleepMS       uint16
}

var headSize = binary.Size(head{})

func (f frame) encode() []byte {
	size := headSize
	for _, part := range f.parts {
		size += 4 + len(part)
	}
	body, _ := binary.Append(make([]byte, 0, size), binary.LittleEndian, f.head)
	for _, part := range f.parts {
		body = append(binary.LittleEndian.AppendUint32(body, uint32(len(part))), part...)
	}
	return body
}

// decode reads a frame that encode wrote. Other input does not occur.
func decode(body []byte) (f frame) {
	_, _ = binary.Decode(body, binary.LittleEndian, &f.head)
	for body = body[headSize:]; len(body) > 0; {
		end := 4 + binary.LittleEndian.Uint32(body)
		f.parts = append(f.parts, body[4:end])
		body = body[end:]
	}
	return f
}

// batch returns the batch of a session as a frame.
func (l load) batch(session int, n uint64) []byte {
	f := frame{head: head{Batch: n, Session: uint32(session), Reads: uint16(l.reads), Writes: uint16(l.writes), SleepMS: uint16(l.sleep.Milliseconds())}}
	input := []byte(l.input())
	for range l.calls() {
		f.parts = append(f.parts, input)
	}
	return f.encode()
}

// answered reports whether a frame is the reply of batch n, and whether it is complete.
func (l load) answered(body []byte, n uint64) (bool, error) {
	f := decode(body)
	if f.Batch != n {
		return false, nil
	}
	for i := range l.calls() {
		if i >= len(f.parts) || len(f.parts[i]) != l.bytes {
			return true, fmt.Errorf("batch %d: no result of call %d", n, i)
		}
	}
	return true, nil
}

// job returns call i of a batch.
func (f frame) job(i int) []byte {
	job := frame{f.head, f.parts[i : i+1]}
	job.Index = uint16(i)
	if i >= int(f.Reads) {
		job.SleepMS = 0
	}
	return job.encode()
}

// run is the tool: it does nothing, or sleeps, and the result is the job itself.
func (h head) run() { time.Sleep(time.Duration(h.SleepMS) * time.Millisecond) }
