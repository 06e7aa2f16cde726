package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	records "github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/sim/judge"
	"github.com/toolfleet/toolfleet/internal/sim/store"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

var names = store.Names

// Names of the streams.
var (
	repliesStream = store.Replies
	jobsStream    = store.Jobs
)

// Submission is a batch that an agent publishes.
type Submission = judge.Submission

// truth returns the real journal. It uses this task's connection to the model of the broker.
func truth(t *world.Task) *records.Journal { return store.Journal(t) }

// anytime is the context of a request without a deadline.
var anytime = context.Background()

// journal gives a task the methods with which this package uses the journal.
type journal struct{ *world.Task }

// entry is a stored record of a call.
type entry struct {
	seq    uint64 // 0: there is no record
	record wire.CallRecord
}

// lostTo says that another writer's record is the newest of the call.
type lostTo struct{ newest entry }

func (l *lostTo) Error() string {
	return fmt.Sprintf("%s at %d is newer", l.newest.record.State, l.newest.seq)
}

func (j journal) write(key wire.CallKey, record wire.CallRecord, last uint64, deadline time.Time) (uint64, error) {
	seq, err := truth(j.Task).Write(store.By(anytime, deadline), key, record, last)
	var lost *records.Lost
	if errors.As(err, &lost) {
		return 0, &lostTo{entry{lost.Newest.Seq, lost.Newest.Record}}
	}
	return seq, err
}

func (j journal) newest(key wire.CallKey) (entry, error) {
	newest, _, err := truth(j.Task).Newest(anytime, key)
	return entry{newest.Seq, newest.Record}, err
}

func (j journal) writeResult(key wire.CallKey, result messages.Result) (messages.Result, error) {
	return truth(j.Task).WriteResult(anytime, key, result)
}

func (j journal) result(key wire.CallKey) (messages.Result, bool, error) {
	return truth(j.Task).Result(anytime, key)
}

func (j journal) handBack(key wire.CallKey) error {
	return truth(j.Task).WriteHandBack(anytime, key, wire.HandBack{})
}
