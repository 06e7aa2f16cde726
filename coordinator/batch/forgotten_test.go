package batch_test

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// The records of a batch may have been deleted, so a missing record proves nothing: the write
// may have been applied, and its outcome is unknown. Only a driver that is certainly the first
// one of the batch knows that the write was not applied.
func TestWhatIsForgottenIsUnknown(t *testing.T) {
	catalog, err := schemas.NewCatalog(schemas.Tool{Name: "pay", Kind: messages.KindWrite}, schemas.Tool{Name: "look", Kind: messages.KindRead})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		late      bool
		after     time.Duration // counted from the end of the batch's time
		pay, look messages.Status
	}{
		"kept":       {true, time.Minute, messages.StatusExpired, messages.StatusExpired},
		"forgotten":  {true, 3 * time.Hour, messages.StatusOutcomeUnknown, messages.StatusExpired},
		"first look": {false, 3 * time.Hour, messages.StatusExpired, messages.StatusExpired},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config("mine")
			cfg.NotAfter, cfg.Forgets = epoch, epoch.Add(2*time.Hour)
			m := batch.New(plan.New([]messages.ToolCall{{ID: "0", Index: 0, Name: "look", Input: []byte("{}")}, {ID: "1", Index: 1, Name: "pay", Input: []byte("{}")}}, catalog), cfg)
			got := map[int]messages.Status{}
			now := epoch.Add(tc.after)
			wants := m.Step(now, batch.Begin{Late: tc.late})
			for len(wants) > 0 {
				want := wants[0]
				wants = wants[1:]
				if end, ok := want.(batch.End); ok {
					got[end.Index] = end.Result.Status
					wants = append(wants, m.Step(now, batch.Ended{Index: end.Index, Result: end.Result})...)
				}
				if store, ok := want.(batch.StorePlan); ok {
					wants = append(wants, m.Step(now, batch.Planned{Record: store.Record, Seq: 1})...)
				}
			}
			if got[0] != tc.look || got[1] != tc.pay {
				t.Errorf("the read ended %s and the write %s, want %s and %s", got[0], got[1], tc.look, tc.pay)
			}
		})
	}
}
