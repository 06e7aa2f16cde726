package main

import (
	"bufio"
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestClassOfAMessage(t *testing.T) {
	const deliveredBy = "$JS.ACK.TOOLFLEET_JOBS.q.1.2.3.4.5"
	for line, want := range map[string]string{
		"PUB toolfleet.event._.s.b 2\r\nhi\r\n":                                                    "toolfleet.event",
		"PUB toolfleet.read.q._.s.b.0 _INBOX.a.1 2\r\nhi\r\n":                                      "toolfleet.read",
		"HPUB toolfleet.call._.s.b.0 _INBOX.a.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n":                   "toolfleet.call",
		"PUB $JS.API.DIRECT.GET.TOOLFLEET_CALLS.toolfleet.call._.s.b.0 _INBOX.a.1 0\r\n\r\n":       "direct get of CALLS",
		"PUB $JS.API.CONSUMER.MSG.NEXT.TOOLFLEET_JOBS.q _INBOX.a.1 2\r\n{}\r\n":                    "pull of JOBS",
		"PUB " + deliveredBy + " 4\r\n+ACK\r\n":                                                    "ack of JOBS +ACK",
		"PUB " + deliveredBy + " 0\r\n\r\n":                                                        "ack of JOBS +ACK",
		"PUB " + deliveredBy + " 16\r\n-NAK {\"delay\":1}\r\n":                                     "ack of JOBS -NAK",
		"MSG toolfleet.read.q._.s.b.0 1 " + deliveredBy + " 2\r\nhi\r\n":                           "delivery of toolfleet.read",
		"MSG toolfleet.notify.c 1 2\r\nhi\r\n":                                                     "toolfleet.notify",
		"MSG _INBOX.a.1 1 25\r\n{\"stream\":\"S\", \"seq\":12}\n\r\n":                              "answer to a store",
		"MSG _INBOX.a.1 1 2\r\n{}\r\n":                                                             "answer, other",
		"HMSG _INBOX.a.1 1 28 30\r\nNATS/1.0\r\nNats-Stream: S\r\n\r\nhi\r\n":                      "answer to a direct get",
		"HMSG _INBOX.a.1 1 34 34\r\nNATS/1.0 404 Message Not Found\r\n\r\n\r\n":                    "answer to a direct get: nothing",
		"HMSG _INBOX.a.1 1 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n":                          "end of a pull",
		"PUB $JS.API.STREAM.MSG.DELETE.TOOLFLEET_BATCHES _INBOX.a.1 2\r\n{}\r\n":                   "$JS.API.STREAM.MSG.DELETE",
		"HPUB $JS.API.STREAM.MSG.GET.TOOLFLEET_BATCHES _INBOX.a.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n": "leader get of BATCHES",
		"HMSG toolfleet.write.q._.s.b.8 1 " + deliveredBy + " 12 14\r\nNATS/1.0\r\n\r\nhi\r\n":     "delivery of toolfleet.write",
		"PUB toolfleet.reply._.s.b 5\r\nPUB x\r\n":                                                 "toolfleet.reply",
	} {
		in := bufio.NewReader(strings.NewReader(line + "PING\r\n"))
		m, err := readProtocol(in)
		if err != nil {
			t.Errorf("%q: %v", line, err)
			continue
		}
		if got := m.class(); !m.message || got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
		if string(m.line)+string(m.body) != line {
			t.Errorf("%q is passed on as %q", line, string(m.line)+string(m.body))
		}
		if next, err := readProtocol(in); err != nil || next.message || string(next.line) != "PING\r\n" {
			t.Errorf("%q: got %q after it, %v", line, next.line, err)
		}
	}
}

// Ratios are between slices of the same round, so a machine that gets slower does not change them.
func TestRatiosAreOfOneRound(t *testing.T) {
	slice := func(seconds int) sample { return sample{calls: 100, wall: time.Duration(seconds) * time.Second} }
	r := row{name: "r", metrics: []metric{rate}}
	lines := r.lines(results{
		{"toolfleet", "r"}: {slice(2), slice(20), slice(200)},
		{"floor", "r"}:     {slice(1), slice(10), slice(100)},
		{"floor", "other"}: {slice(7)},
	})
	if len(lines) != 1 {
		t.Fatalf("got %d lines, want 1", len(lines))
	}
	if got, want := lines[0].cells["floor"], (cell{value: 10, ratio: 0.5}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAGathererKeepsTheOrder(t *testing.T) {
	var stages [][2]int
	g := &gatherer{}
	g.enqueue = func(_ context.Context, f frame, i, j int) error {
		stages = append(stages, [2]int{i, j})
		for k := j - 1; k >= i; k-- { // results come in any order
			g.result(f.job(k))
		}
		return nil
	}
	l := load{sessions: 1, reads: 3, writes: 2, bytes: 5}
	reply, err := g.run(t.Context(), l.batch(4, 7))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := l.answered(reply, 7); !ok || err != nil || decode(reply).Session != 4 {
		t.Errorf("the reply is not that of the batch: %v, %v", ok, err)
	}
	if want := [][2]int{{0, 3}, {3, 4}, {4, 5}}; !slices.Equal(stages, want) {
		t.Errorf("got the stages %v, want %v", stages, want)
	}
	if ok, err := l.answered(frame{head{Batch: 7}, [][]byte{nil}}.encode(), 7); !ok || err == nil {
		t.Errorf("a reply without results: got %v, %v", ok, err)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(c.values); got != c.want {
			t.Errorf("%v: got %v, want %v", c.values, got, c.want)
		}
	}
}
