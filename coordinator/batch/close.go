package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/messages"
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

// seenRecord is a record, and when this coordinator first saw it.
type seenRecord struct {
	seq uint64
	at  time.Time
}

// Close is what to do about one call.
type Close struct {
	End     bool      // store its end now, behind the record that was looked at
	Unknown bool      // with End: it may have been applied, so its outcome is not known
	Until   time.Time // without End: a worker may be running it until then
}

// Call decides about the call at index, whose newest record has the sequence seq (0: it has none) and has
// not ended. A worker whose claim is live may be running the tool: that is waited out.
func (c *Closing) Call(now time.Time, index int, record messages.CallRecord, seq uint64) Close {
	if !claimedBy(record) {
		return Close{End: true, Unknown: record.Unsure()}
	}
	if c.seen == nil {
		c.seen = map[int]seenRecord{}
	}
	seen, known := c.seen[index]
	if !known || seen.seq != seq {
		seen = seenRecord{seq, now}
		c.seen[index] = seen
	}
	lease := time.Duration(record.LeaseMS) * time.Millisecond
	if lease == 0 {
		lease = c.Lease
	}
	if until := seen.at.Add(lease + c.Grace); now.Before(until) {
		return Close{Until: until}
	}
	return Close{End: true, Unknown: true}
}
