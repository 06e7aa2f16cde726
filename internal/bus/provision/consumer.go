package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// maxWaiting is how many pull requests may wait on one consumer: one or two from every worker of
// the fleet.
const maxWaiting = 4096

// DefaultAckWait is how long a delivery may go without a sign of life before the server delivers it
// again.
const DefaultAckWait = 10 * time.Second

// Consumer is a durable consumer that many processes pull from. Each message is acknowledged on its
// own. The server redelivers a message without end; the processes that pull it count its attempts,
// and end it if it breaks them.
type Consumer struct {
	Stream  string   // whole name
	Name    string   // of the durable
	Filters []string // none = everything in the stream
	// AckWait is how long a delivery may go without a sign of life before the server delivers it
	// again. 0 = DefaultAckWait.
	AckWait time.Duration
	// MaxInFlight bounds how many deliveries may be unsettled in the whole fleet. 0 = no bound.
	MaxInFlight int
	// InMemory makes a consumer that is lost when the server ends; the server then delivers all
	// messages of the stream again. A stream that is not synced needs it. After a power loss such a
	// stream may have a message back that a consumer on disk counts as acknowledged: the consumer
	// would never deliver it, and the message's subject would stay taken.
	InMemory bool
	// Unused is how long nobody may pull before the server removes the consumer; its messages stay
	// in the stream. 0 = it stays.
	Unused time.Duration
}

// BatchesConsumer returns the durable consumer of the log. It has no bound in flight, so that a
// batch that waits for its turn does not hold up others.
func BatchesConsumer(n wire.Names, ackWait time.Duration) Consumer {
	return Consumer{Stream: n.Stream(bus.Batches), Name: bus.CoordinatorsConsumer, AckWait: ackWait}
}

// QueueConsumer returns the durable consumer of a queue of jobs, named after the queue's token. It
// delivers reads and writes. The consumer of a toolset is removed when no worker has pulled from it
// for some minutes, so that the toolsets of earlier releases do not pile up.
func QueueConsumer(n wire.Names, queue string, ackWait time.Duration, maxInFlight int) (Consumer, error) {
	pool := wire.PoolOf(queue)
	if pool == "" {
		return Consumer{}, fmt.Errorf("pool %.80q: a pool's name is 1 to 64 of A-Z a-z 0-9 _ -", queue)
	}
	c := Consumer{
		Stream: n.Stream(bus.Jobs), Name: queue, AckWait: ackWait, MaxInFlight: maxInFlight, InMemory: true,
		Filters: n.QueueOf(queue),
	}
	if queue != pool {
		c.Unused = toolsetUnused
	}
	return c, nil
}

// RequestedConsumer returns the durable consumer of a queue that a worker asks for. It is that of
// [QueueConsumer], but is always removed when no worker has pulled from it for some minutes, so that
// a worker cannot fill the stream with consumers. The error says what is wrong with the request.
func RequestedConsumer(n wire.Names, queue string, r wire.QueueRequest) (Consumer, error) {
	wait := time.Duration(r.AckWaitMS) * time.Millisecond
	if r.AckWaitMS < 1 || r.AckWaitMS > longestAckWait.Milliseconds() || r.MaxInFlight < 0 {
		return Consumer{}, fmt.Errorf("queue %s: an ack_wait of %d ms with %d in flight: want 1 ms to %v, and no negative bound", queue, r.AckWaitMS, r.MaxInFlight, longestAckWait)
	}
	c, err := QueueConsumer(n, queue, wait, r.MaxInFlight)
	c.Unused = toolsetUnused
	return c, err
}

// longestAckWait bounds the ack wait of a requested consumer.
const longestAckWait = time.Hour

// toolsetUnused is how long the consumer of a toolset outlives its last worker. A worker that loses
// its connection for longer makes the consumer again.
const toolsetUnused = 5 * time.Minute

// ErrTooManyConsumers: the stream has as many consumers as the server allows.
var ErrTooManyConsumers = errors.New("the server allows no more consumers of the stream")

// EnsureConsumer makes a durable consumer, or updates the times and bounds of an existing one. An
// existing one with other filters, acknowledgements or delivery is a *bus.Mismatch. One with the
// other storage is deleted and made anew, because the server cannot change that. If this user may
// not make consumers, a coordinator is asked for that of a queue.
func EnsureConsumer(ctx context.Context, c *bus.Conn, want Consumer) error {
	ctx, cancel := context.WithTimeout(ctx, bus.CallTimeout)
	defer cancel()
	config := want.config()
	may := func() bool { return c.May(ctx, "$JS.API.CONSUMER.CREATE."+want.Stream+"."+want.Name) }
	have, err := c.JetStream().Consumer(ctx, want.Stream, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if !may() {
			return request(ctx, c, want) // a coordinator makes the stream too
		}
		return fmt.Errorf("consumer %s of %s: %w", want.Name, want.Stream, bus.ErrNoStream)
	case err != nil:
		return fmt.Errorf("consumer %s of %s: %w", want.Name, want.Stream, err)
	default:
		is := have.CachedInfo().Config
		if err := checkConsumer(want, is, config); err != nil {
			return err
		}
		if is.MemoryStorage != config.MemoryStorage { // the server cannot change the storage of a consumer
			if err := c.JetStream().DeleteConsumer(ctx, want.Stream, want.Name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
				return fmt.Errorf("make consumer %s of %s anew: %w", want.Name, want.Stream, err)
			}
		}
		if is.MemoryStorage == config.MemoryStorage && is.AckWait == config.AckWait && is.MaxAckPending == config.MaxAckPending && is.MaxWaiting == config.MaxWaiting &&
			is.InactiveThreshold == config.InactiveThreshold {
			return nil
		}
	}
	if !may() {
		return request(ctx, c, want)
	}
	if _, err := c.JetStream().CreateOrUpdateConsumer(ctx, want.Stream, config); err != nil {
		if errors.Is(err, jetstream.ErrMaximumConsumersLimit) {
			err = fmt.Errorf("%w: %w", ErrTooManyConsumers, err)
		}
		return fmt.Errorf("consumer %s of %s: %w", want.Name, want.Stream, err)
	}
	return nil
}

// request asks a coordinator for the consumer of a queue.
func request(ctx context.Context, c *bus.Conn, want Consumer) error {
	body := rawjson.MustMarshal(wire.QueueRequest{
		V: messages.Version, AckWaitMS: cmp.Or(want.AckWait, DefaultAckWait).Milliseconds(), MaxInFlight: want.MaxInFlight,
	})
	answer, err := c.Request(ctx, c.Names().Queue(want.Name), nil, body)
	if err != nil {
		return fmt.Errorf("ask a coordinator for the consumer %s of %s: %w", want.Name, want.Stream, err)
	}
	switch answer.Header.Get(bus.ServiceErrorCodeHeader) {
	case "":
		return nil
	case TooManyConsumersCode:
		err = ErrTooManyConsumers
	default:
		err = errNotOurs
	}
	return fmt.Errorf("consumer %s of %s %w: %s", want.Name, want.Stream, err, answer.Header.Get(bus.ServiceErrorHeader))
}

// TooManyConsumersCode is the code of a coordinator's answer that means [ErrTooManyConsumers].
const TooManyConsumersCode = "507"

func (w Consumer) config() jetstream.ConsumerConfig {
	config := jetstream.ConsumerConfig{
		Durable:        w.Name,
		FilterSubjects: w.Filters,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        w.AckWait,
		MaxDeliver:     -1,
		MaxAckPending:  w.MaxInFlight,
		MaxWaiting:     maxWaiting,
		MemoryStorage:  w.InMemory,

		InactiveThreshold: w.Unused,
	}
	if config.AckWait == 0 {
		config.AckWait = DefaultAckWait
	}
	if config.MaxAckPending == 0 {
		config.MaxAckPending = -1
	}
	return config
}

func checkConsumer(w Consumer, have, want jetstream.ConsumerConfig) error {
	filters := slices.Clone(have.FilterSubjects)
	if have.FilterSubject != "" {
		filters = append(filters, have.FilterSubject)
	}
	for _, f := range []struct {
		field      string
		have, want any
	}{
		{"filter_subjects", strings.Join(filters, ", "), strings.Join(want.FilterSubjects, ", ")},
		{"ack_policy", have.AckPolicy, want.AckPolicy},
		{"max_deliver", have.MaxDeliver, want.MaxDeliver},
		{"deliver_subject", have.DeliverSubject, ""},
	} {
		if !reflect.DeepEqual(f.have, f.want) {
			return mismatch(fmt.Sprintf("consumer %s of stream %s", w.Name, w.Stream), f.field, f.have, f.want)
		}
	}
	return nil
}
