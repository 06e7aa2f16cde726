package coordinator

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// A timeline may be large, so only few are made at once. Who comes then waits a while, and is told to come again. A tenant has one
// turn at a time, so it cannot take those of all.
func TestTimelinesAreMadeOneAfterAnother(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		key, _ := o.asked()
		var leave func()
		for i := range storytellers {
			leave, _ = c.telling.enter(t.Context(), fmt.Sprint("other", i))
		}
		began := time.Now()
		if _, err := c.timeline(t.Context(), key.BatchKey); !errors.Is(err, errCrowded) || time.Since(began) != patience {
			t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), errCrowded, patience)
		}
		time.AfterFunc(time.Second, leave)
		for range 2 { // the second has the place of the first
			if _, err := c.timeline(t.Context(), key.BatchKey); err != nil {
				t.Error(err)
			}
		}
		leave, _ = c.telling.enter(t.Context(), key.Tenant)
		if _, err := c.batches(t.Context(), key.BatchKey, messages.Get{Batches: true}); !errors.Is(err, errCrowded) {
			t.Errorf("a second turn of the tenant: %v, want %v", err, errCrowded)
		}
		leave()
		if n := len(c.telling.of); n != storytellers-1 {
			t.Errorf("%d tenants are remembered, want the %d that are in", n, storytellers-1)
		}
	})
}

// What people were asked, and agreed to with other arguments, is granted.
func TestTheTimelineOfAnEdit(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		key, q := o.asked()
		if answer := o.decide(key, o.decision(q, messages.VerdictEdit, "alice", edit(`{"amount":10}`))); answer.State != messages.DecisionGranted {
			t.Fatalf("answered %+v, %+v", answer, answer.Error)
		}
		o.reply(key.BatchKey, soon)
		body, err := c.timeline(t.Context(), key.BatchKey)
		o.must(err)
		var told messages.Timeline
		o.must(json.Unmarshal(body, &told))
		for _, e := range told.Events {
			if e.Type != messages.EventAwaiting {
				continue
			}
			if a := e.Approval; a.State != "granted" || !slices.Equal(a.Agreed, []string{"alice"}) || e.Attempt != 0 || strings.Contains(a.Line, "10") {
				t.Errorf("told %+v", a)
			}
			return
		}
		t.Error("the question is not told")
	})
}
