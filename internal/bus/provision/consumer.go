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

// maxWaiting is how many pull requests may wait at one consumer. Each worker of the fleet has
// one or two waiting.
const maxWaiting = 4096

// DefaultAckWait is how long a worker may give no sign of life about a delivery before the
// server delivers the message again.
const DefaultAckWait = 10 * time.Second

// Consumer is a durable consumer that many processes pull from. Each message is acknowledged
// by itself. The server delivers an unsettled message again, as often as needed. The processes
// count the deliveries. They end a message if too many processes were lost while they worked
// on it.
type Consumer struct {
	Stream  string   // full name of the stream
	Name    string   // name of the durable consumer
	Filters []string // none: all subjects of the stream
	// AckWait is how long a worker may give no sign of life about a delivery before the
	// server delivers the message again. 0 = DefaultAckWait.
	AckWait time.Duration
	// MaxInFlight limits how many deliveries may be unsettled in the whole fleet. 0 = no
	// limit.
	MaxInFlight int
	// InMemory makes a consumer that the server does not store. When the server ends, the
	// consumer is lost, and a new one delivers all messages of the stream again.
	//
	// A stream that is not synced to disk needs such a consumer. After a power loss, the
	// stream may have a message again that a consumer on disk counts as acknowledged. That
	// consumer would never deliver the message. As long as the message stays, no new message
	// could be stored under its subject.
	InMemory bool
	// Unused is how long nobody may pull before the server removes the consumer. The messages
	// stay in the stream. 0 = the consumer stays.
	Unused time.Duration
}

// BatchesConsumer returns the durable consumer of the log. It has no limit in flight, so that
// batches that wait for their turn do not keep back other batches.
func BatchesConsumer(n wire.Names, ackWait time.Duration) Consumer {
	return Consumer{Stream: n.Stream(bus.Batches), Name: bus.CoordinatorsConsumer, AckWait: ackWait}
}

// QueueConsumer returns the durable consumer of a queue of jobs. Its name is the queue's
// token. It delivers both reads and writes. If the queue is a toolset's and no worker pulls
// for some minutes, the server removes the consumer. So no consumers stay of the toolsets of
// earlier releases.
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

// RequestedConsumer returns the durable consumer that a worker asks for. It is like
// [QueueConsumer], but for any queue the server removes the consumer when no worker pulls for
// some minutes. So a worker cannot fill the stream with consumers. The error says what is
// wrong with the request.
func RequestedConsumer(n wire.Names, queue string, r wire.QueueRequest) (Consumer, error) {
	wait := time.Duration(r.AckWaitMS) * time.Millisecond
	if r.AckWaitMS < 1 || r.AckWaitMS > longestAckWait.Milliseconds() || r.MaxInFlight < 0 {
		return Consumer{}, fmt.Errorf("queue %s: an ack_wait of %d ms with %d in flight: want 1 ms to %v, and no negative bound", queue, r.AckWaitMS, r.MaxInFlight, longestAckWait)
	}
	c, err := QueueConsumer(n, queue, wait, r.MaxInFlight)
	c.Unused = toolsetUnused
	return c, err
}

// longestAckWait limits AckWait of a requested consumer.
const longestAckWait = time.Hour

// toolsetUnused is how long the consumer of a toolset stays without workers. A worker that was
// without a connection for longer makes the consumer again.
const toolsetUnused = 5 * time.Minute

// ErrTooManyConsumers: the stream has as many consumers as the server allows.
var ErrTooManyConsumers = errors.New("the server allows no more consumers of the stream")

// EnsureConsumer makes a durable consumer, or updates the times and limits of an existing one.
// If the existing consumer has other filters, acknowledgements or delivery, the error is a
// *bus.Mismatch. If its storage is another, it is deleted and made again, because the server
// cannot change the storage. If this user may not make consumers, EnsureConsumer asks a
// coordinator to make the consumer of a queue.
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
		if is.MemoryStorage != config.MemoryStorage { // the server cannot change the storage
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

// request asks a coordinator to make the consumer of a queue.
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

// TooManyConsumersCode is the status code with which a coordinator reports
// [ErrTooManyConsumers].
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
