package batches

import (
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/progress"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/messages"
)

// Each batch that is open at the start gets a line with its status.
func TestStatusLines(t *testing.T) {
	accepted := time.Date(2026, 11, 22, 2, 3, 27, 0, time.UTC)
	terminaltest.Golden(t, "watch.txt", WatchCmd{Session: new(string)}.statusLines([]openBatch{
		{Batch: "turn-7", Accepted: accepted, BatchStatus: progress.BatchStatus{State: progress.StateAwaitingPerson, Tool: "issue_refund", Expires: accepted.Add(15*time.Minute + 2*time.Second)}},
		{Batch: "turn-8\n", Accepted: accepted, BatchStatus: progress.BatchStatus{State: progress.StateBehind, Behind: "turn-7"}},
		{Batch: "turn-6", Accepted: accepted, BatchStatus: progress.BatchStatus{State: progress.StateEnding}},
	}, accepted.Add(3*time.Second)))
}

// A watcher who comes right after the end of a batch is told how to see it.
func TestNothingOpen(t *testing.T) {
	now := time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		newest *messages.ListedBatch
		want   string
	}{
		{nil, "no batch of it is open, and none has ended lately; what begins is shown"},
		{
			&messages.ListedBatch{Batch: "turn-7\n", Status: "completed", Ended: now.Add(-12 * time.Second)},
			"no batch of it is open; the last, turn-7, was completed 12s ago, and --since 1m12s shows it. What begins is shown",
		},
		{
			&messages.ListedBatch{Batch: "turn-7", Status: "refused", Ended: now.Add(-50 * time.Hour)},
			"no batch of it is open; the last, turn-7, was refused 2d ago, and --since 50h01m shows it. What begins is shown",
		},
	} {
		if got := nothingOpen(row.newest, now); got != row.want {
			t.Errorf("got  %s\nwant %s", got, row.want)
		}
	}
}
