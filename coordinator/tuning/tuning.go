// Package tuning has the numbers and durations of a coordinator, with their defaults. It is
// separate from package coordinator, so that a program that only reads the settings of a fleet
// does not contain the coordinator.
package tuning

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/journal"
)

// Config holds those settings of a coordinator that are plain values. The fields of the same
// names in coordinator.Config explain them.
type Config struct {
	Slots, Window, Lookahead int
	AckWait, Poll            time.Duration
	QueueTimeout, StartWait  time.Duration
	BatchTTL, Grace, Drain   time.Duration
	Poison                   int
	AfterUnknown             string // stop or continue
}

// Default returns the default settings, except Poll, which depends on AckWait: see
// [DefaultPoll].
func Default() Config {
	return Config{
		Slots: 1024, Window: 8, Lookahead: 32, AckWait: provision.DefaultAckWait, QueueTimeout: time.Minute,
		BatchTTL: provision.Config{}.WithDefaults().BatchTTL, Grace: journal.DefaultGrace(journal.DefaultLease),
		StartWait: 30 * time.Second, Drain: 5 * time.Second, Poison: journal.DefaultPoison, AfterUnknown: "stop",
	}
}

// DefaultPoll returns the time between two reads of the journal while a batch waits.
func DefaultPoll(ackWait time.Duration) time.Duration { return ackWait / 3 }
