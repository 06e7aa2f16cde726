package bus_test

import (
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// Messages of several subjects are handled in the order in which they were sent. After
// unsubscribe none is handled.
func TestSubscribeInOrder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c, speaker := bustest.Connect(t, srv), bustest.Connect(t, srv)
		var heard []string
		unsubscribe, err := c.SubscribeInOrder([]string{"a", "b", "c"}, func(m bus.Msg) { heard = append(heard, m.Subject+string(m.Data)) })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		say := func(n int) {
			t.Helper()
			if err := speaker.Publish(string("abc"[n%3]), nil, []byte(strconv.Itoa(n))); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 1000 {
			say(n)
		}
		synctest.Wait()
		if len(heard) != 1000 {
			t.Fatalf("%d of 1000 were heard", len(heard))
		}
		for n, got := range heard {
			if want := string("abc"[n%3]) + strconv.Itoa(n); got != want {
				t.Fatalf("number %d is %s, want %s", n, got, want)
			}
		}
		unsubscribe()
		unsubscribe()
		say(1000)
		synctest.Wait()
		if len(heard) != 1000 {
			t.Error("something was heard after the end")
		}
	}, natstest.Fast)
}
