package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Closing decides how the calls of a batch end that cannot be driven on, for example because its machine
// broke. It looks at nothing but each call's newest record, so it needs no plan and no machine.
//
// The calls are closed before the batch is answered: once the batch has left the log, the next write of
// the session may start, and nothing of this batch may be queued or running then.
type Closing struct {
	Lease time.Duration // of a claim whose record does not tell its own
	Grace time.Duration // added to a lease before the claim is held to have lapsed

	seen map[int]seenRecord // by call
}

// seenRecord is the newest record of a call, and when this coordinator first saw it and its attempt.
type seenRecord struct {
	seq         uint64
	attempt     int
	at, claimed time.Time
}

// Close is what to do about one call.
type Close struct {
	End     bool      // store its end now, behind the record that was looked at
	Unknown bool      // with End: it may have been applied, so its outcome is not known
	Until   time.Time // without End: a worker may be running it until then
}

// Call decides about the call at index, whose newest record has the sequence seq (0: it has none) and has
// not ended. A worker whose claim is live may be running the tool. The run is waited for and not stopped: what
// it comes to is worth more than an outcome that nobody knows. A claim that is renewed for longer than
// its run can take is held by a broken worker.
func (c *Closing) Call(now time.Time, index int, record wire.CallRecord, seq uint64) Close {
	if !isClaim(record) {
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
