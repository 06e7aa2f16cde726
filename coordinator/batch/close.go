package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Closing decides how to end the calls of a batch that no driver can finish, for example
// because its machine panics. It needs only the newest record of each call, neither a plan nor
// a machine.
//
// All calls must end before the batch gets its reply. With the reply the batch leaves the log,
// and the next write of the session may start. At that time no call of this batch may be
// queued or running.
type Closing struct {
	Lease time.Duration // lease of a claim whose record has none
	Grace time.Duration // added to a lease before the claim counts as lapsed

	seen map[int]seenRecord // by call
}

// seenRecord holds when this coordinator saw the newest record of a call.
type seenRecord struct {
	seq     uint64
	attempt int
	at      time.Time // when the record was first seen
	claimed time.Time // when the first record of this attempt was seen
}

// Close says what to do about one call.
type Close struct {
	End     bool      // store its result now, after the record that was read
	Unknown bool      // with End: the call may have been applied, so its outcome is unknown
	Until   time.Time // without End: a worker may run the call until this time
}

// Call decides about an open call. seq is the sequence of its newest record, or 0 if there is
// none.
//
// While the claim of a worker is live, the call stays open: the worker may finish the call,
// and a real result is better than an unknown outcome. If a worker renews its claim for longer
// than any run can take, the worker is broken, and the call ends.
func (c *Closing) Call(now time.Time, index int, record wire.CallRecord, seq uint64) Close {
	if !isClaim(record.State) {
		return Close{End: true, Unknown: record.Unsure()}
	}
	if c.seen == nil {
		c.seen = map[int]seenRecord{}
	}
	seen, known := c.seen[index]
	if !known || seen.attempt != record.Attempt {
		seen = seenRecord{attempt: record.Attempt, claimed: now}
	}
	if seen.seq != seq {
		seen.seq, seen.at = seq, now
	}
	c.seen[index] = seen
	lease := time.Duration(record.LeaseMS) * time.Millisecond
	if lease == 0 {
		lease = c.Lease
	}
	until := seen.at.Add(lease + c.Grace)
	if deadline := time.Duration(record.DeadlineMS) * time.Millisecond; deadline > 0 {
		if latest := seen.claimed.Add(deadline + c.Lease + c.Grace); latest.Before(until) {
			until = latest
		}
	}
	if now.Before(until) {
		return Close{Until: until}
	}
	return Close{End: true, Unknown: true}
}
