package provision_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// A stream that held the only copy of records is lost: it is not made again. Otherwise batches
// would be lost and writes would run twice without a trace.
func TestALostStreamIsNotMadeAnew(t *testing.T) {
	for stream, used := range map[string]string{
		bus.Batches: "toolfleet.final._.s.b", bus.Calls: "toolfleet.batch._.s.b", bus.Replies: "toolfleet.call._.s.b.0",
	} {
		t.Run(stream, func(t *testing.T) {
			srv := natstest.Server(t, natstest.Fast)
			c, js := bustest.Connect(t, srv), bustest.Raw(t, srv)
			name := c.Names().Stream(stream)
			remove := func() {
				t.Helper()
				if err := js.DeleteStream(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			bustest.Provision(t, c)
			remove() // no stream has had a message yet, so it may be made again
			bustest.Provision(t, c)
			if _, err := c.Append(t.Context(), used, nil, nil); err != nil {
				t.Fatal(err)
			}
			bustest.Provision(t, c)
			remove()
			var lost *provision.LostStream
			if err := provision.Ensure(t.Context(), c, provision.Config{}); !errors.As(err, &lost) || lost.Stream != name || !strings.Contains(err.Error(), "stream "+name+" is gone") {
				t.Errorf("after the loss of %s: %v", name, err)
			}
			if _, err := js.Stream(t.Context(), name); err == nil {
				t.Errorf("%s was made anew", name)
			}
			// The operator deletes the other streams too, as the error advises.
			for _, each := range []string{bus.Batches, bus.Calls, bus.Replies} {
				_ = js.DeleteStream(t.Context(), c.Names().Stream(each)) // one of them is gone already, so errors do not matter
			}
			bustest.Provision(t, c)
		})
	}
}
