package batch

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func TestClosingEndsWhatNobodyRuns(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		what    string
		record  wire.CallRecord
		seq     uint64
		unknown bool
	}{
		{"no record", wire.CallRecord{}, 0, false},
		{"parked", wire.CallRecord{State: wire.Parked}, 3, false},
		{"granted", wire.CallRecord{State: wire.Granted}, 3, false},
		{"released, known not to have been applied", wire.CallRecord{State: wire.Released, OnCrash: messages.OnCrashOnce, Error: &messages.Error{Code: messages.CodeToolError}}, 3, false},
		{"released while it ran", wire.CallRecord{State: wire.Released, OnCrash: messages.OnCrashIdempotent}, 3, true},
	} {
		got := new(Closing).Call(now, 0, tt.record, tt.seq)
		if want := (Close{End: true, Unknown: tt.unknown}); got != want {
			t.Errorf("%s: %+v, want %+v", tt.what, got, want)
		}
	}
}

// A call with a claim is closed only when its lease is over. Each renewal starts the lease
// anew. The lease counts from when this coordinator first saw the record.
func TestClosingWaitsOutALiveClaim(t *testing.T) {
	c := &Closing{Lease: time.Minute, Grace: 2 * time.Second}
	now := time.Unix(1000, 0)
	claim := wire.CallRecord{State: wire.Claimed, LeaseMS: 10_000}
	if got := c.Call(now, 1, claim, 5); got.End || !got.Until.Equal(now.Add(12*time.Second)) {
		t.Errorf("a new claim: %+v, want it waited out for 12 s", got)
	}
	renewed := claim
	renewed.State = wire.Renewed
	now = now.Add(11 * time.Second)
	if got := c.Call(now, 1, renewed, 8); got.End || !got.Until.Equal(now.Add(12*time.Second)) {
		t.Errorf("a renewed claim: %+v, want it waited out for another 12 s", got)
	}
	now = now.Add(12 * time.Second)
	if got, want := c.Call(now, 1, renewed, 8), (Close{End: true, Unknown: true}); got != want {
		t.Errorf("a lapsed claim: %+v, want %+v", got, want)
	}
	endless := wire.CallRecord{State: wire.Renewed, LeaseMS: 10_000, DeadlineMS: 5_000, Attempt: 1}
	for began, seq := now, uint64(20); ; now, seq = now.Add(5*time.Second), seq+1 {
		if got := c.Call(now, 3, endless, seq); got.End {
			if took := now.Sub(began); took < 67*time.Second || took > 75*time.Second {
				t.Errorf("a claim of a run of 5 s that is renewed for ever is ended after %v, want about 67 s", took)
			}
			break
		} else if now.Sub(began) > 10*time.Minute {
			t.Fatal("a claim that is renewed for ever is never ended")
		}
	}
	unreadable := wire.CallRecord{State: "unreadable"}
	if got := c.Call(now, 2, unreadable, 9); got.End || !got.Until.Equal(now.Add(62*time.Second)) {
		t.Errorf("a record that cannot be read: %+v, want it held for a claim with the longest lease", got)
	}
}
