package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// The batches of a session may end in another order than that of the log. The stream of
// replies has them in the order in which they ended. A place is a sequence in that stream. It
// separates batches that have ended from batches that end later, without any clock.

// Replied is a batch that has ended, with the parts of its reply that a list of batches shows.
type Replied struct {
	Key    wire.BatchKey
	Place  uint64 // sequence in the stream of replies
	Stored time.Time
	Size   int              // number of bytes that were read for this entry
	Batch  messages.BatchID // "" if the reply cannot be read
	Status messages.ReplyStatus
}

// LastReplied returns the newest stored reply of a session.
func (j *Journal) LastReplied(ctx context.Context, tenant, session string) (Replied, bool, error) {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Replies), j.names.OfSession(wire.VerbFinal, tenant, session)+".*")
	if errors.Is(err, bus.ErrNotFound) {
		return Replied{}, false, nil
	}
	if err != nil {
		return Replied{}, false, fmt.Errorf("read the replies of session %s: %w", session, err)
	}
	return j.readReplied(msg), true, nil
}

// RepliesOf returns the stored replies of these batches, in the order in which they were
// stored.
func (j *Journal) RepliesOf(ctx context.Context, keys ...wire.BatchKey) ([]Replied, error) {
	subjects := make([]string, len(keys))
	for i, key := range keys {
		subjects[i] = j.names.Of(wire.VerbFinal, key)
	}
	msgs, err := j.conn.LastOfEach(ctx, j.names.Stream(bus.Replies), subjects...)
	if err != nil {
		return nil, fmt.Errorf("read the replies of %d batches in the log: %w", len(keys), err)
	}
	replies := make([]Replied, len(msgs))
	for i, msg := range msgs {
		replies[i] = j.readReplied(msg)
	}
	return replies, nil
}

// EachReplied calls each for every batch of a session whose reply was stored at from or later,
// oldest first, until each returns false. It keeps one page of replies in memory. A replica
// that is behind may answer, so the newest replies may be missing.
func (j *Journal) EachReplied(
	ctx context.Context, tenant, session string, from bus.From, each func(Replied) (more bool),
) error {
	filter := j.names.OfSession(wire.VerbFinal, tenant, session) + ".*"
	return j.conn.Scan(ctx, j.names.Stream(bus.Replies), filter, from,
		func(msg bus.Msg) bool { return each(j.readReplied(msg)) })
}

func (j *Journal) readReplied(msg bus.Msg) Replied {
	r := Replied{Place: msg.Seq, Stored: msg.Time, Size: len(msg.Data)}
	_, r.Key, _ = j.names.Batch(msg.Subject)
	var reply struct {
		Batch  messages.BatchID
		Status messages.ReplyStatus
	}
	if rawjson.Unmarshal(msg.Data, &reply) == nil {
		r.Batch, r.Status = reply.Batch, reply.Status
	}
	return r
}

// SessionsWith returns the sessions of a tenant that have a batch with this id, in the log or
// with a stored reply. Each session appears once, those with a reply first. A replica that is
// behind may answer.
func (j *Journal) SessionsWith(ctx context.Context, tenant string, batch messages.BatchID) ([]messages.SessionID, error) {
	anywhere := wire.BatchKey{Tenant: tenant, Session: "*", Batch: messages.Token(batch)}
	var sessions []messages.SessionID
	for _, in := range []struct {
		stream string
		verb   wire.Verb
	}{{bus.Replies, wire.VerbFinal}, {bus.Batches, wire.VerbBatch}} {
		found, err := j.conn.Glance(ctx, j.names.Stream(in.stream), j.names.Of(in.verb, anywhere))
		if err != nil {
			return nil, fmt.Errorf("look for batch %s: %w", batch, err)
		}
		for _, msg := range found {
			_, key, err := j.names.Batch(msg.Subject)
			var says struct{ Session messages.SessionID }
			if err != nil || json.Unmarshal(msg.Data, &says) != nil || messages.Token(says.Session) != key.Session {
				continue // the body does not name the session of its subject
			}
			if !slices.Contains(sessions, says.Session) {
				sessions = append(sessions, says.Session)
			}
		}
	}
	return sessions, nil
}
