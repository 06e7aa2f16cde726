package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Closing decides how to end the calls of a batch that no driver can bring to its end, for example
// because its machine panics. It has no plan and no machine; each call's newest record is enough.
//
// All calls end before the batch is answered. The answered batch leaves the log, and then the next
// write of the session may start: no call of this batch may be queued or running at that time.
type Closing struct {
	Lease time.Duration // for a claim whose record has no lease
	Grace time.Duration // added to a lease before the claim counts as lapsed

	seen map[int]seenRecord // by call
}

// seenRecord says when this coordinator saw the newest record of a call.
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
	Until   time.Time // without End: a worker may run the call until then
}

// Call decides about an open call. seq is the sequence of its newest record; 0: it has none. If a
// worker's claim is live, the worker may be running the tool. It may finish, because its result is
// worth more than an unknown outcome. A claim that is renewed for longer than any run can take is
// of a broken worker: that call ends.
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
