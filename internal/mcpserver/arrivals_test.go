package mcpserver_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/messages"
)

// numbered returns a call as the client's request with this number.
func numbered(number int, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":{"n":%d}}}`, number, tool, number)
}

// A client sends several calls at once over HTTP, and a later one arrives first: they run in
// the order of their numbers. Neighbouring reads run together.
func TestCallsThatArriveTogether(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		s := mcpserver.New(mcpserver.Config{Logger: f.log})
		rounds := 200
		if testing.Short() {
			rounds = 20
		}
		var want []string
		for i := 1; i <= 3*rounds; i += 3 {
			var calls sync.WaitGroup
			for _, c := range []struct {
				number int
				tool   string
			}{{i + 1, "look"}, {i + 2, "note"}, {i, "note"}} {
				calls.Go(func() {
					if got := f.post(t.Context(), s, numbered(c.number, c.tool)); !strings.Contains(got, fmt.Sprintf(`"text":"{\"n\":%d}"`, c.number)) {
						t.Errorf("call %d: %s", c.number, got)
					}
				})
				synctest.Wait() // the call has arrived
			}
			calls.Wait()
			want = append(want, fmt.Sprintf(`note{"n":%d}`, i), fmt.Sprintf(`look{"n":%d}`, i+1), fmt.Sprintf(`note{"n":%d}`, i+2))
		}
		if diff := cmp.Diff(want, f.history()); diff != "" {
			t.Error(diff)
		}
		var reads sync.WaitGroup
		for i := range 3 {
			reads.Go(func() { f.post(t.Context(), s, numbered(1000-i, "gate")) })
		}
		f.waitEntered(3)
		close(f.gate)
		reads.Wait()
	})
}

// A client disconnects before its call is stored: the call does not run, and holds up no other
// call.
func TestAClientThatIsGoneBeforeItsTurn(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		s := mcpserver.New(mcpserver.Config{Logger: f.log})
		ctx, leave := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		calls.Go(func() { f.post(ctx, s, numbered(1, "note"), "Idempotency-Key", "gone") })
		calls.Go(func() { f.post(t.Context(), s, numbered(2, "look"), "Idempotency-Key", "stays") })
		synctest.Wait()
		leave()
		calls.Wait()
		f.untilCall("s", "stays", messages.StatusOK)
		if diff := cmp.Diff([]string{`look{"n":2}`}, f.history()); diff != "" {
			t.Error(diff)
		}
	})
}

// A call of another session does not wait for the calls of this one.
func TestACallOfAnotherSessionDoesNotWait(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		s := mcpserver.New(mcpserver.Config{Logger: f.log})
		var calls sync.WaitGroup
		calls.Go(func() { f.post(t.Context(), s, numbered(1, "hold")) })
		f.waitEntered(1)
		calls.Go(func() {
			f.post(t.Context(), s, strings.Replace(numbered(2, "look"), `"params":{`, `"params":{"_meta":{"toolfleet/session":"other"},`, 1))
		})
		f.until("the look has run", func() bool { return len(f.history()) == 2 })
		close(f.gate)
		calls.Wait()
	})
}
