// Package provision makes the streams, buckets and durable consumers of a fleet. It checks
// those that exist, and makes again what a server has lost.
//
// BATCHES, CALLS and REPLIES hold the truth: their content cannot be made again from other
// data. The package makes these streams only on a new server. If one of them is missing later,
// a person has to find out why.
package provision

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Config says how long messages are kept, and how safely. The zero value has the defaults.
type Config struct {
	Replicas int // copies of every stream and bucket. 0 = 1; 3 survives the loss of a server
	// BatchTTL is how long a batch may live. Time to wait for people is added, up to another
	// BatchTTL. Records of the batch are kept for three times BatchTTL. 0 = 1 h
	BatchTTL  time.Duration
	ReplyTTL  time.Duration // how long replies and their batch ids are kept. 0 = 24 h
	AuditTTL  time.Duration // how long audit lines are kept. 0 = 30 days
	DeadTTL   time.Duration // how long dead letters are kept. 0 = 7 days
	WorkerTTL time.Duration // how long a worker counts as present after an announcement. 0 = 30 s
	// MaxBatches limits the number of messages in the log. A full log refuses further
	// batches. 0 = no limit.
	MaxBatches int64
	// MaxBytes limits each stream and bucket in bytes, by name (bus.Batches, Calls...). A full
	// stream refuses new messages and never drops old ones. Without an entry, the limit is the
	// server's own.
	MaxBytes map[string]int64
	// Erasable leaves CALLS, RESULTS, AUDIT and REPLIES without deny_delete and deny_purge, and
	// leaves the buckets with allow_rollup_hdrs. A stream that is protected already stays
	// so. Set Erasable while old builds may still start in the fleet: they refuse streams that
	// are protected in a way that they do not know.
	Erasable bool
}

// WithDefaults returns the Config with defaults in the fields that are zero.
func (p Config) WithDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&p.BatchTTL, time.Hour}, {&p.ReplyTTL, 24 * time.Hour}, {&p.AuditTTL, 30 * 24 * time.Hour},
		{&p.DeadTTL, 7 * 24 * time.Hour}, {&p.WorkerTTL, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	p.Replicas = max(p.Replicas, 1)
	return p
}

// Ensure makes the missing streams, buckets and consumers, and checks the existing ones. If a
// setting would break a promise, it returns a *bus.Mismatch and leaves the stream unchanged.
// If a stream that held the truth is gone, it returns a *LostStream and does not make the
// stream.
//
// An operator may change these settings: limits (as long as a full stream refuses), placement,
// compression, more replicas, longer ages, and syncing of a stream that Ensure would not sync.
// Ensure itself changes three things: an age that is too short, a missing limit that the
// Config has, and missing protection of records and buckets against deletes, purges and
// rollups (see Config.Erasable).
//
// While a server is still starting, Ensure waits for it, like [Patiently]. If this user may
// not make a missing stream, it waits in the same way for another process to make the stream.
func Ensure(ctx context.Context, c *bus.Conn, p Config, consumers ...Consumer) error {
	ctx, cancel := waiting(ctx)
	defer cancel()
	if err := Patiently(ctx, func(ctx context.Context) error { return Lost(ctx, c) }); err != nil {
		return err
	}
	for _, want := range streams(c.Names(), p.WithDefaults()) {
		if err := Patiently(ctx, func(ctx context.Context) error { return ensureStream(ctx, c, want) }); err != nil {
			return err
		}
	}
	for _, want := range consumers {
		if err := Patiently(ctx, func(ctx context.Context) error { return EnsureConsumer(ctx, c, want) }); err != nil {
			return err
		}
	}
	c.Now(ctx) // reads the server's clock, so that the first decision uses it
	return nil
}

// Patiently repeats try while the server is starting or its cluster has no leader. It gives up
// when ctx ends, or after 15 s if ctx has no deadline.
func Patiently(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := waiting(ctx)
	defer cancel()
	return bus.Retry(ctx, bus.Backoff{First: startPause, Most: startPause, Jitter: true, Again: notReady}, func() error { return try(ctx) })
}

// waiting limits ctx to startTimeout if ctx has no deadline.
func waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, startTimeout)
}

const (
	startTimeout = 15 * time.Second       // how long a server may take to start
	startPause   = 100 * time.Millisecond // time between two tries
)

// errNotOurs: a stream is missing, and this user may not make it. Ensure then waits until
// another process makes the stream.
var errNotOurs = errors.New("is not there, and this user may not make it; a coordinator does when it starts")

// notReady reports whether the error comes from a server or cluster that is still starting,
// or is about a stream that another user has to make first.
func notReady(err error) bool { return errors.Is(err, errNotOurs) || bus.NotReady(err) }

// streams returns the configuration of every stream and bucket. docs/architecture.md has a
// table of them.
func streams(n wire.Names, p Config) []jetstream.StreamConfig {
	stream := func(name string, maxAge time.Duration, subjects ...string) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: n.Stream(name), Subjects: subjects, MaxAge: maxAge, Discard: jetstream.DiscardNew,
			Storage: jetstream.FileStorage, AllowDirect: true, Replicas: p.Replicas, MaxBytes: limit(p.MaxBytes[name]),
		}
	}
	queue := func(name string, subjects ...string) jetstream.StreamConfig {
		s := stream(name, 0, subjects...)
		s.Retention, s.MaxMsgsPerSubject, s.DiscardNewPerSubject = jetstream.WorkQueuePolicy, 1, true
		return s
	}
	// kept denies deletes and purges: messages leave the stream only because of their age.
	kept := func(s jetstream.StreamConfig) jetstream.StreamConfig {
		s.DenyDelete, s.DenyPurge = !p.Erasable, !p.Erasable
		return s
	}
	// remade marks a stream that KeepRemade may make again. With one replica, such a stream is
	// not synced. With three replicas, the server has no such option.
	remade := func(s jetstream.StreamConfig) jetstream.StreamConfig {
		if p.Replicas == 1 {
			s.PersistMode = jetstream.AsyncPersistMode
		}
		return s
	}
	// A bucket allows no rollup. By the header Nats-Rollup, a key that may write one entry could
	// remove all others.
	bucket := func(name string, ttl time.Duration) jetstream.StreamConfig {
		s := stream(name, ttl, "$KV."+n.Stream(name)+".>")
		s.Name, s.MaxMsgsPerSubject, s.AllowRollup, s.DenyDelete = bucketPrefix+s.Name, 1, p.Erasable, true
		return s
	}

	batches := queue(bus.Batches, n.EveryBatch(wire.VerbBatch))
	batches.MaxMsgs = limit(p.MaxBatches)
	// The window for duplicates is as short as the server allows. A batch may have the message
	// id of a batch that has finished within this window. The server would then acknowledge
	// the batch and not store it, and the agent would wait for ever.
	batches.Duplicates = 100 * time.Millisecond

	replies := kept(stream(bus.Replies, p.ReplyTTL, n.All(wire.VerbFinal)))
	replies.RePublish = &jetstream.RePublish{Source: n.All(wire.VerbFinal), Destination: n.All(wire.VerbReply)}

	workers := remade(bucket(bus.BucketWorkers, p.WorkerTTL))
	// The server replaces an entry that has reached its maximum age by a marker, so watchers
	// see the deletion. The server allows rollups where it makes such markers. An entry that is
	// removed by a rollup comes back with the next announcement.
	workers.AllowMsgTTL, workers.SubjectDeleteMarkerTTL, workers.AllowRollup = true, max(p.WorkerTTL, time.Second), true

	objects := stream(bus.Objects, objectTTL(p), "$O."+n.Stream(bus.Objects)+".C.>", "$O."+n.Stream(bus.Objects)+".M.>")
	objects.Name, objects.AllowRollup = "OBJ_"+objects.Name, true

	// The log comes last: when it accepts the first batch, all other streams exist.
	return []jetstream.StreamConfig{
		remade(queue(bus.Jobs, n.All(wire.VerbRead), n.All(wire.VerbWrite))),
		kept(stream(bus.Calls, 3*p.BatchTTL, n.All(wire.VerbCall), n.All(wire.VerbPlan), n.All(wire.VerbHand),
			n.OfSession(wire.VerbCtl, "*", "*"))),
		kept(remade(stream(bus.Results, 3*p.BatchTTL, n.All(wire.VerbResult)))),
		kept(stream(bus.Audit, p.AuditTTL, n.All(wire.VerbAudit))),
		stream(bus.Dead, p.DeadTTL, n.All(wire.VerbDead)),
		replies,
		bucket(bus.BucketTools, 0),
		bucket(bus.BucketKeys, 0),
		workers,
		// An entry never needs to be kept for longer than its batch lives. If an entry gets
		// lost, the next driver of the batch writes it again.
		remade(bucket(bus.BucketApprovals, 2*p.BatchTTL)),
		objects,
		batches,
	}
}

// bucketPrefix begins the names of the streams that hold buckets.
const bucketPrefix = "KV_"

// objectTTL returns how long an object is kept: twice as long as any record that refers to an
// object. Put does not store an object again in the first half of its life. So the second half
// must be as long as any such record is kept.
func objectTTL(p Config) time.Duration { return 2 * max(p.ReplyTTL, 3*p.BatchTTL) }

// limit returns n in the server's form, in which -1 and not 0 means no limit.
func limit(n int64) int64 {
	if n <= 0 {
		return -1
	}
	return n
}

// ensureStream makes a stream, or checks and adjusts the existing one.
func ensureStream(ctx context.Context, c *bus.Conn, want jetstream.StreamConfig) error {
	// A cluster without a leader does not answer.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	s, err := c.JetStream().Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !c.May(ctx, "$JS.API.STREAM.CREATE."+want.Name) {
			return fmt.Errorf("stream %s %w", want.Name, errNotOurs)
		}
		if s, err = c.JetStream().CreateStream(ctx, want); err == nil {
			return nil
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was first
			s, err = c.JetStream().Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return provisionError(want.Name, err)
	}
	have := s.CachedInfo().Config
	if err := checkStream(have, want, erased(c.Names(), want.Name)); err != nil {
		return err
	}
	// If this user may not update streams, another process updates this one.
	if !adjust(&have, want) || !c.May(ctx, "$JS.API.STREAM.UPDATE."+want.Name) {
		return nil
	}
	if _, err := c.JetStream().UpdateStream(ctx, have); err != nil {
		return fmt.Errorf("bring the ages, bounds and flags of stream %s up to date: %w", want.Name, err)
	}
	return nil
}

// erased reports whether the fleet itself deletes messages of a stream. If such a stream had
// deny_delete, finished batches would stay in the log, and dead letters could not be dropped.
func erased(n wire.Names, stream string) bool {
	return stream == n.Stream(bus.Batches) || stream == n.Stream(bus.Jobs) || stream == n.Stream(bus.Dead)
}

// adjust lengthens an age that is too short. It also sets the limits and flags of want that
// have lacks: the process that made the stream may have had no limits, or may be of a build
// without the flags. changed is true if adjust has changed have.
func adjust(have *jetstream.StreamConfig, want jetstream.StreamConfig) (changed bool) {
	if shorter(have.MaxAge, want.MaxAge) {
		have.MaxAge, changed = want.MaxAge, true
	}
	if have.MaxMsgs <= 0 && want.MaxMsgs > 0 {
		have.MaxMsgs, changed = want.MaxMsgs, true
	}
	if have.MaxBytes <= 0 && want.MaxBytes > 0 {
		have.MaxBytes, changed = want.MaxBytes, true
	}
	if want.DenyDelete && !have.DenyDelete {
		have.DenyDelete, changed = true, true
	}
	if want.DenyPurge && !have.DenyPurge {
		have.DenyPurge, changed = true, true
	}
	if have.AllowRollup && !want.AllowRollup && isBucket(want) {
		have.AllowRollup, changed = false, true
	}
	return changed
}

// isBucket reports whether a stream holds a bucket. Buckets work with rollups and without.
func isBucket(s jetstream.StreamConfig) bool { return strings.HasPrefix(s.Name, bucketPrefix) }

func provisionError(stream string, err error) error {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		return fmt.Errorf("provision stream %s: JetStream does not answer (nats-server -js, and enabled for this account?): %w", stream, err)
	}
	return fmt.Errorf("provision stream %s: %w", stream, err)
}

// shorter reports whether one maximum age, have, is shorter than another, want. The age 0
// means for ever.
func shorter(have, want time.Duration) bool {
	return have != 0 && (want == 0 || have < want)
}

// checkStream returns a *bus.Mismatch about the first difference that would break a promise.
// erased says that the fleet deletes messages of the stream.
func checkStream(have, want jetstream.StreamConfig, erased bool) error {
	for _, f := range []struct {
		field      string
		have, want any
	}{
		{"subjects", have.Subjects, want.Subjects},
		{"retention", have.Retention, want.Retention},
		{"max_msgs_per_subject", perSubject(have), perSubject(want)},
		{"discard", have.Discard, want.Discard},
		{"discard_new_per_subject", have.DiscardNewPerSubject, want.DiscardNewPerSubject},
		{"storage", have.Storage, want.Storage},
		{"allow_direct", have.AllowDirect, want.AllowDirect},
		{"republish", have.RePublish, want.RePublish},
		{"no_ack", have.NoAck, want.NoAck},
		{"sealed", have.Sealed, false},
		{"deny_delete", have.DenyDelete && erased, false},
		{"allow_rollup_hdrs", have.AllowRollup && !isBucket(want), want.AllowRollup && !isBucket(want)},
		{"allow_msg_ttl", have.AllowMsgTTL, want.AllowMsgTTL},
		{"allow_msg_counter", have.AllowMsgCounter, false},
		{"subject_transform", have.SubjectTransform, want.SubjectTransform},
		{"mirror", have.Mirror, want.Mirror},
		{"sources", len(have.Sources), 0},
	} {
		if !reflect.DeepEqual(f.have, f.want) {
			return mismatch("stream "+want.Name, f.field, shown(f.have), shown(f.want))
		}
	}
	switch {
	case have.Replicas < want.Replicas:
		return mismatch("stream "+want.Name, "num_replicas", have.Replicas, fmt.Sprintf("at least %d", want.Replicas))
	case have.PersistMode == jetstream.AsyncPersistMode && want.PersistMode != jetstream.AsyncPersistMode:
		return mismatch("stream "+want.Name, "persist_mode", have.PersistMode, want.PersistMode)
	case want.Duplicates != 0 && have.Duplicates > want.Duplicates:
		return mismatch("stream "+want.Name, "duplicate_window", have.Duplicates, fmt.Sprintf("at most %v", want.Duplicates))
	}
	return nil
}

func mismatch(thing, field string, have, want any) error {
	return &bus.Mismatch{Thing: thing, Field: field, Have: have, Want: want}
}

// perSubject returns the number of messages for each subject. 0 means any number, for which
// the server writes -1.
func perSubject(s jetstream.StreamConfig) int64 { return max(s.MaxMsgsPerSubject, 0) }

// shown returns a value in the form that error texts have.
func shown(v any) any {
	switch v := v.(type) {
	case *jetstream.RePublish:
		if v == nil {
			return "none"
		}
		return v.Source + " -> " + v.Destination
	case []string:
		return strings.Join(v, ", ")
	}
	return v
}
