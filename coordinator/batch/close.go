package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Closing decides how to close the calls of a batch that no driver can bring to its end, for
// example because its machine broke. It reads only each call's newest record, so it needs no plan
// and no machine.
//
// The calls are closed before the batch is answered: once the batch has left the log, the next
// write of the session may start, and nothing of this batch may be queued or running then.
type Closing struct {
	Lease time.Duration // of a claim whose record has none
	Grace time.Duration // added to a lease before the claim counts as lapsed

	seen map[int]seenRecord // by call
}

// seenRecord is the newest record of a call.
type seenRecord struct {
	seq     uint64
	attempt int
	at      time.Time // when this coordinator first saw the record
	claimed time.Time // when it first saw a record of the attempt
}

// Close is what to do about one call.
type Close struct {
	End     bool      // store its end now, behind the record that was read
	Unknown bool      // with End: it may have been applied, so its outcome is unknown
	Until   time.Time // without End: a worker may be running it until then
}

// Call decides about the call at index, which has not ended. Seq is the sequence of its newest
// record; 0: it has none. A worker whose claim is live may be running the tool. The run is waited
// for and not stopped: its result is worth more than an unknown outcome. A claim that is renewed
// for longer than its run can take is held by a broken worker, and is not waited for.
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
