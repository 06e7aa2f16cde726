package bus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/messages"
)

// What messages.Names.Stream is asked for: the streams and buckets of a fleet.
const (
	Batches = "BATCHES" // the log: what is accepted and not finished
	Jobs    = "JOBS"    // pointers to calls that should run
	Calls   = "CALLS"   // claims and results of calls that claim; plans, hand-backs, control records
	Results = "RESULTS" // results of calls that do not claim
	Audit   = "AUDIT"   // the record for people
	Dead    = "DEAD"    // what could not be processed, and why
	Replies = "REPLIES" // the one reply of each batch

	BucketTools     = "tools"     // definitions
	BucketWorkers   = "workers"   // presence
	BucketApprovals = "approvals" // index of what waits for a person
	BucketKeys      = "keys"      // what hashes in the record for people are made with: for the daemons' eyes only
	Objects         = "OBJECTS"   // large bodies by digest
)

// Provision says how long and how safely things are kept. The zero value is the default fleet.
type Provision struct {
	Replicas  int           // of every stream and bucket. 0 = 1; 3 survives the loss of a server
	BatchTTL  time.Duration // how long a batch may live beside its waits for people, which double it at most; its records are kept three times as long. 0 = 1 h
	ReplyTTL  time.Duration // how long a reply can be fetched and its batch id is remembered. 0 = 24 h
	AuditTTL  time.Duration // 0 = 30 days
	DeadTTL   time.Duration // 0 = 7 days
	WorkerTTL time.Duration // how long a worker is present after its last announcement. 0 = 30 s
	// MaxBatches bounds the log: further batches are refused at the publish until some have ended. 0 = no bound.
	MaxBatches int64
	// MaxBytes bounds each stream and bucket by name (Batches, Calls...), in bytes. A full one refuses; it never
	// forgets. Missing = no bound but the server's.
	MaxBytes map[string]int64
}

func (p Provision) withDefaults() Provision {
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

// Provision makes the streams, buckets and durables that are missing and checks those that are there. One that would break a
// promise is a *Mismatch and is left alone; one that held the truth and is gone is a *LostStream and not made. What an
// operator may set without our asking: limits (every stream refuses when full), placement, compression, more replicas,
// longer ages, a stream that syncs where we would not. An age that is too short is lengthened, and a bound that is asked
// for is set where there is none.
//
// A server that is still starting is waited for, as [Patiently] does; and so is, for what this user may not make, somebody who may.
func (c *Conn) Provision(ctx context.Context, p Provision, consumers ...Consumer) error {
	ctx, cancel := waiting(ctx)
	defer cancel()
	if err := Patiently(ctx, c.Lost); err != nil {
		return err
	}
	for _, want := range c.streams(p.withDefaults()) {
		if err := Patiently(ctx, func(ctx context.Context) error { return c.ensureStream(ctx, want) }); err != nil {
			return err
		}
	}
	for _, want := range consumers {
		if err := Patiently(ctx, func(ctx context.Context) error { return c.EnsureConsumer(ctx, want) }); err != nil {
			return err
		}
	}
	c.Now(ctx) // so that nobody goes by our own clock even at first
	return nil
}

// Patiently repeats, until ctx ends or for 15 s when that has no deadline, what a server does not do yet that is starting, or whose
// cluster has no leader at this moment.
func Patiently(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := waiting(ctx)
	defer cancel()
	err := try(ctx)
	for notReady(err) && pause(ctx, jitter(minBackoff)) {
		err = try(ctx)
	}
	return err
}

// waiting gives the wait for a server its deadline when the caller has none.
func waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, startTimeout)
}

// startTimeout is how long a server may take to come up.
const startTimeout = 15 * time.Second

// notReady reports whether err is what a server says that has just started, or whose cluster has.
func notReady(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode == codeClusterNotReady || api.ErrorCode == codeNoPeers
	}
	err = sendError(err)
	return errors.Is(err, errNotOurs) || errors.Is(err, ErrNoResponders) || errors.Is(err, ErrDisconnected) || errors.Is(err, context.DeadlineExceeded)
}

// streams is the table of DESIGN part 3.
func (c *Conn) streams(p Provision) []jetstream.StreamConfig {
	n := c.names
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
	// remade marks what can be made again: on one replica it is not synced, on three the option does not exist.
	remade := func(s jetstream.StreamConfig) jetstream.StreamConfig {
		if p.Replicas == 1 {
			s.PersistMode = jetstream.AsyncPersistMode
		}
		return s
	}
	bucket := func(name string, ttl time.Duration) jetstream.StreamConfig {
		s := stream(name, ttl, "$KV."+n.Stream(name)+".>")
		s.Name, s.MaxMsgsPerSubject, s.AllowRollup, s.DenyDelete = "KV_"+s.Name, 1, true, true
		return s
	}

	batches := queue(Batches, n.EveryBatch(messages.VerbBatch))
	batches.MaxMsgs = limit(p.MaxBatches)
	// As short as the server allows: a publish that is taken for a duplicate of a finished batch would be
	// acknowledged, and its agent would wait for ever.
	batches.Duplicates = 100 * time.Millisecond

	replies := stream(Replies, p.ReplyTTL, n.All(messages.VerbFinal))
	replies.RePublish = &jetstream.RePublish{Source: n.All(messages.VerbFinal), Destination: n.All(messages.VerbReply)}

	workers := remade(bucket(BucketWorkers, p.WorkerTTL))
	// A marker takes the place of what has aged out, so that watchers hear of it.
	workers.AllowMsgTTL, workers.SubjectDeleteMarkerTTL = true, max(p.WorkerTTL, time.Second)

	objects := stream(Objects, objectTTL(p), "$O."+n.Stream(Objects)+".C.>", "$O."+n.Stream(Objects)+".M.>")
	objects.Name, objects.AllowRollup = "OBJ_"+objects.Name, true

	// The log comes last: when it takes the first batch, the other streams are there.
	return []jetstream.StreamConfig{
		remade(queue(Jobs, n.All(messages.VerbRead), n.All(messages.VerbWrite))),
		stream(Calls, 3*p.BatchTTL, n.All(messages.VerbCall), n.All(messages.VerbPlan), n.All(messages.VerbHand),
			n.OfSession(messages.VerbCtl, "*", "*")),
		remade(stream(Results, 3*p.BatchTTL, n.All(messages.VerbResult))),
		stream(Audit, p.AuditTTL, n.All(messages.VerbAudit)),
		stream(Dead, p.DeadTTL, n.All(messages.VerbDead)),
		replies,
		bucket(BucketTools, 0),
		bucket(BucketKeys, 0),
		workers,
		// No question outlives its batch. An entry that is gone is made again when the batch is next looked at.
		remade(bucket(BucketApprovals, 2*p.BatchTTL)),
		objects,
		batches,
	}
}

// objectTTL outlives whatever refers to an object, twice: an object that is put again is left as it is for
// the first half of its life.
func objectTTL(p Provision) time.Duration { return 2 * max(p.ReplyTTL, 3*p.BatchTTL) }

// limit is n in the server's words, where 0 is no limit but -1 is what it stores.
func limit(n int64) int64 {
	if n <= 0 {
		return -1
	}
	return n
}

// ensureStream makes a stream or checks the one that is there.
func (c *Conn) ensureStream(ctx context.Context, want jetstream.StreamConfig) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second) // a cluster without a leader does not answer at all
	defer cancel()
	s, err := c.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !c.May(ctx, api("STREAM", "CREATE", want.Name)) {
			return fmt.Errorf("stream %s %w", want.Name, errNotOurs)
		}
		if s, err = c.js.CreateStream(ctx, want); err == nil {
			return nil
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // made by another at this moment
			s, err = c.js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return provisionError(want.Name, err)
	}
	have := s.CachedInfo().Config
	if err := checkStream(have, want); err != nil {
		return err
	}
	if !adjust(&have, want) || !c.May(ctx, api("STREAM", "UPDATE", want.Name)) { // whoever may does
		return nil
	}
	if _, err := c.js.UpdateStream(ctx, have); err != nil {
		return fmt.Errorf("bring the ages and bounds of stream %s up to date: %w", want.Name, err)
	}
	return nil
}

// adjust lengthens an age that is too short, and bounds what has no bound where one is asked for: whoever made the stream
// may have known of none. It reports whether anything has changed.
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
	return changed
}

func provisionError(stream string, err error) error {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		return fmt.Errorf("provision stream %s: JetStream does not answer (nats-server -js, and enabled for this account?): %w", stream, err)
	}
	return fmt.Errorf("provision stream %s: %w", stream, err)
}

// shorter compares ages, of which 0 is for ever.
func shorter(have, want time.Duration) bool {
	return have != 0 && (want == 0 || have < want)
}

// checkStream names the first difference that would break a promise.
func checkStream(have, want jetstream.StreamConfig) error {
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
		{"deny_delete", have.DenyDelete, want.DenyDelete},
		{"allow_rollup_hdrs", have.AllowRollup, want.AllowRollup},
		{"allow_msg_ttl", have.AllowMsgTTL, want.AllowMsgTTL},
		{"allow_msg_counter", have.AllowMsgCounter, false},
		{"subject_transform", have.SubjectTransform, want.SubjectTransform},
		{"mirror", have.Mirror, want.Mirror},
		{"sources", len(have.Sources), 0},
	} {
		if !reflect.DeepEqual(f.have, f.want) {
			return &Mismatch{"stream " + want.Name, f.field, shown(f.have), shown(f.want)}
		}
	}
	switch {
	case have.Replicas < want.Replicas:
		return &Mismatch{"stream " + want.Name, "num_replicas", have.Replicas, fmt.Sprintf("at least %d", want.Replicas)}
	case have.PersistMode == jetstream.AsyncPersistMode && want.PersistMode != jetstream.AsyncPersistMode:
		return &Mismatch{"stream " + want.Name, "persist_mode", have.PersistMode, want.PersistMode}
	case want.Duplicates != 0 && have.Duplicates > want.Duplicates:
		return &Mismatch{"stream " + want.Name, "duplicate_window", have.Duplicates, fmt.Sprintf("at most %v", want.Duplicates)}
	}
	return nil
}

// perSubject is the number of messages kept per subject; 0 for any number, which the server writes as -1.
func perSubject(s jetstream.StreamConfig) int64 { return max(s.MaxMsgsPerSubject, 0) }

// shown is a value for people.
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
