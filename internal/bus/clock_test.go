package bus_test

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// The age of a message is counted by the server's clock, whatever date our own clock shows.
func TestTheServersClock(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn := bustest.Connect(t, srv)
		defer conn.Close()
		if err := provision.Ensure(t.Context(), conn, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		subject := "toolfleet.batch._.s.b"
		if _, err := conn.Append(t.Context(), subject, nil, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		stored, err := conn.Last(t.Context(), conn.Names().Stream(bus.Batches), subject)
		if err != nil {
			t.Fatal(err)
		}
		// Ages are right while the first reading of the clock is used, and after later
		// readings.
		for _, wait := range []time.Duration{0, 30 * time.Second, time.Hour} {
			time.Sleep(wait)
			if age, want := conn.Now(t.Context()).Sub(stored.Time), time.Since(stored.Time); (age - want).Abs() > time.Second {
				t.Errorf("stored %v ago, and the server's clock says %v", want, age)
			}
		}
		at := stored.Time.Add(2 * time.Hour)
		if got := conn.Local(t.Context(), at); (time.Until(got) - at.Sub(conn.Now(t.Context()))).Abs() > time.Second {
			t.Errorf("two hours after it was stored is %v by our clock", got)
		}
	})
}
