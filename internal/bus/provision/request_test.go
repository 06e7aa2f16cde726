package provision_test

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// A worker asks for a queue: it gets a consumer of this queue alone, which the server removes
// when nobody pulls from it. Other members of the request have no effect.
func TestRequestedConsumer(t *testing.T) {
	var n wire.Names
	for _, queue := range []string{"default", wire.QueueToken("default", []string{"a"})} {
		c, err := provision.RequestedConsumer(n, queue, wire.QueueRequest{V: 1, AckWaitMS: 2500, MaxInFlight: 3})
		if err != nil || c.Stream != "TOOLFLEET_JOBS" || c.Name != queue || c.AckWait != 2500*time.Millisecond || c.MaxInFlight != 3 || c.Unused == 0 ||
			len(c.Filters) != 2 || c.Filters[0] != "toolfleet.read."+queue+".>" || c.Filters[1] != "toolfleet.write."+queue+".>" {
			t.Errorf("%s: %+v, %v", queue, c, err)
		}
	}
	for name, bad := range map[string]struct {
		queue   string
		request wire.QueueRequest
	}{
		"no pool":          {"a.b", wire.QueueRequest{AckWaitMS: 1}},
		"a wildcard":       {"*", wire.QueueRequest{AckWaitMS: 1}},
		"no ack wait":      {"default", wire.QueueRequest{}},
		"a day":            {"default", wire.QueueRequest{AckWaitMS: 86_400_000}},
		"a negative bound": {"default", wire.QueueRequest{AckWaitMS: 1, MaxInFlight: -2}},
	} {
		if c, err := provision.RequestedConsumer(n, bad.queue, bad.request); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
