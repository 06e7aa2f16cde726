package progress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Nothing has begun for 3 s: every output says why, once. If a call runs, no output does.
func TestWhyABatchWaits(t *testing.T) {
	for name, events := range map[string]bool{"lines": false, "events": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				d := NewDisplay(&out, events)
				defer d.Close()
				d.Take(messages.Event{Type: messages.EventStart, Session: "s", Batch: "b"})
				out.Reset()
				asked := 0
				d.ExpectEvents("s", "b", func() string {
					if asked++; asked == 1 {
						return "" // it is not known yet
					}
					return "no worker serves pool gpu"
				})
				time.Sleep(time.Minute) // of simulated time
				synctest.Wait()
				got := out.String()
				if events {
					var e messages.Event
					if err := json.Unmarshal(out.Bytes(), &e); err != nil {
						t.Fatalf("%v in %s", err, got)
					}
					got = fmt.Sprintf("%s: %s\n", e.Type, e.Progress.Text)
				}
				if want := "waiting: no worker serves pool gpu\n"; got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				d := NewDisplay(&out, events)
				defer d.Close()
				d.ExpectEvents("s", "b", func() string { return "it waits" })
				d.Take(messages.Event{Type: messages.EventStart, Session: "s", Batch: "b"})
				d.Take(messages.Event{Type: messages.EventRunning, Session: "s", Batch: "b", Attempt: 1})
				time.Sleep(time.Minute)
				synctest.Wait()
				if strings.Contains(out.String(), "waits") {
					t.Errorf("got %q", out.String())
				}
			})
		})
	}
}
