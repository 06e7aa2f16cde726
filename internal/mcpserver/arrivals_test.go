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

// numbered is a call as the client's request of this number.
func numbered(number int, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":{"n":%d}}}`, number, tool, number)
}

// Over HTTP a client sends several calls at once, and a later one arrives first. They run in the
// order in which the client numbered them, and reads among them run together.
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
				synctest.Wait() // it has arrived
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

// A client that is gone before its call is stored holds up no other call, and its call does not
// run.
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

// A call of another session waits for nobody.
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
