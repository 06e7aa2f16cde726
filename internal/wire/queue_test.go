package wire_test

import (
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/wire"
)

func TestQueueTokens(t *testing.T) {
	token := wire.QueueToken("gpu", []string{"b", "a"})
	if other := wire.QueueToken("gpu", []string{"a", "b", "a"}); other != token {
		t.Errorf("the same tools in another order: %s and %s", token, other)
	}
	seen := map[string]bool{}
	for _, token := range []string{
		"gpu", token, wire.WaitingQueue("gpu"), wire.QueueToken("gpu", []string{"a"}), wire.QueueToken("gpu", []string{"ab"}), wire.QueueToken("gpu", []string{"b"}),
	} {
		if seen[token] || wire.PoolOf(token) != "gpu" || len(token) > 64 {
			t.Errorf("token %q of pool %q, seen before: %v", token, wire.PoolOf(token), seen[token])
		}
		seen[token] = true
	}
	for _, token := range []string{"", "~", "gpu~", "gpu~0123", "gpu~0123456789abcdeg", "gpu~0123456789abcdef~", "~0123456789abcdef", "g.u", "*", ">", "gpu~*"} {
		if pool := wire.PoolOf(token); pool != "" {
			t.Errorf("%q is a queue of pool %q", token, pool)
		}
	}
}

// The announcement of a worker may name any queue. Those of other pools and tools do not count.
func TestQueuesOfAPool(t *testing.T) {
	tools := []string{"a", "b"}
	for _, tt := range []struct {
		queue wire.Queue
		is    bool
	}{
		{wire.Queue{Token: "gpu"}, true},
		{wire.Queue{Token: "gpu", Tools: tools}, true},
		{wire.Queue{Token: wire.QueueToken("gpu", tools), Tools: tools}, true},
		{wire.Queue{Token: wire.QueueToken("gpu", tools), Tools: tools[:1]}, false},
		{wire.Queue{Token: wire.QueueToken("cpu", tools), Tools: tools}, false},
		{wire.Queue{Token: wire.WaitingQueue("gpu")}, false},
		{wire.Queue{Token: "cpu"}, false},
		{wire.Queue{}, false},
	} {
		if tt.queue.IsOf("gpu") != tt.is {
			t.Errorf("%+v is a queue of the pool: %v", tt.queue, !tt.is)
		}
	}
}

func TestSubjectsOfJobsThereAndBack(t *testing.T) {
	for _, n := range []wire.Names{{}, {Prefix: "a.b"}} {
		key := wire.KeyOf("_", "a.>", "turn 7").Call(3)
		for _, queue := range []string{"gpu", wire.WaitingQueue("gpu")} {
			for _, exclusive := range []bool{false, true} {
				got, call, err := n.Job(n.Lane(exclusive, queue, key))
				if err != nil || got != queue || call != key {
					t.Errorf("read back: %q %v, err %v; want %q %v", got, call, err, queue, key)
				}
			}
		}
		for _, subject := range []string{n.OfCall(wire.VerbCall, key), strings.TrimSuffix(n.Lane(false, "gpu", key), ".3"), n.Lane(false, "*", key), "x", ""} {
			if queue, call, err := n.Job(subject); err == nil {
				t.Errorf("%q was read as a job: %q %v", subject, queue, call)
			}
		}
	}
}
