// Package inspect reads the state of a server, a stream, a consumer or a pool of workers.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// ServerState is what the connected server reports about itself.
type ServerState struct {
	Name      string    `json:"name"`
	Version   string    `json:"ver"`
	JetStream bool      `json:"jetstream"`
	Time      time.Time `json:"time"`
}

// Server asks the connected server for its state. Servers before 2.11 do not answer. Newer
// servers answer only users with the right to ask.
func Server(ctx context.Context, c *bus.Conn) (ServerState, error) {
	var info struct {
		Server ServerState `json:"server"`
	}
	if err := c.Call(ctx, "$SYS.REQ.USER.INFO", struct{}{}, &info); err != nil {
		return ServerState{}, fmt.Errorf("ask about the server: %w", err)
	}
	return info.Server, nil
}

// StreamState describes the content of a stream.
type StreamState struct {
	Messages, Bytes       uint64
	MaxMessages, MaxBytes int64 // 0 or less: no limit
	Consumers             int
}

// Stream returns the content and the limits of a stream.
func Stream(ctx context.Context, c *bus.Conn, stream string) (StreamState, error) {
	var info struct {
		Config struct {
			MaxMessages int64 `json:"max_msgs"`
			MaxBytes    int64 `json:"max_bytes"`
		} `json:"config"`
		State struct {
			Messages uint64 `json:"messages"`
			Bytes    uint64 `json:"bytes"`

			Consumers int `json:"consumer_count"`
		} `json:"state"`
	}
	if err := c.Call(ctx, "$JS.API.STREAM.INFO."+stream, struct{}{}, &info); err != nil {
		return StreamState{}, fmt.Errorf("ask about stream %s: %w", stream, err)
	}
	return StreamState{info.State.Messages, info.State.Bytes, info.Config.MaxMessages, info.Config.MaxBytes, info.State.Consumers}, nil
}

// Subjects returns the subjects that have messages in a stream, at most 100,000.
func Subjects(ctx context.Context, c *bus.Conn, stream string) ([]string, error) {
	var info struct {
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	if err := c.Call(ctx, "$JS.API.STREAM.INFO."+stream, map[string]string{"subjects_filter": ">"}, &info); err != nil {
		return nil, fmt.Errorf("ask for the subjects of stream %s: %w", stream, err)
	}
	return slices.Collect(maps.Keys(info.State.Subjects)), nil
}

// ConsumerState says how far a consumer has come.
type ConsumerState struct {
	Delivered struct {
		Stream uint64 `json:"stream_seq"` // newest message that was delivered to a worker
	} `json:"delivered"`
	Pending uint64 `json:"num_pending"` // messages that were never delivered
	// InFlight counts the messages that were delivered and not settled. A message that was
	// given back with a delay counts until the delay is over.
	InFlight uint64 `json:"num_ack_pending"`
	Waiting  int    `json:"num_waiting"` // pull requests that wait for a message
}

// Consumer returns how far a consumer has come. The error is bus.ErrNotFound if there is no
// such consumer.
func Consumer(ctx context.Context, c *bus.Conn, stream, name string) (s ConsumerState, err error) {
	if err = c.Call(ctx, "$JS.API.CONSUMER.INFO."+stream+"."+name, struct{}{}, &s); err == nil {
		return s, nil
	}
	var refused *jetstream.APIError
	if errors.As(err, &refused) && refused.ErrorCode == jetstream.JSErrCodeConsumerNotFound {
		err = bus.ErrNotFound
	}
	return s, fmt.Errorf("ask about consumer %s of stream %s: %w", name, stream, err)
}

// Queue counts the jobs of a pool, or of one of its queues.
type Queue struct {
	Pending  uint64    // jobs that were never delivered
	InFlight uint64    // see ConsumerState
	Oldest   time.Time // when the oldest pending job was stored; zero: none is pending
}

func (q *Queue) add(other Queue) {
	q.Pending, q.InFlight = q.Pending+other.Pending, q.InFlight+other.InFlight
	if q.Oldest.IsZero() || !other.Oldest.IsZero() && other.Oldest.Before(q.Oldest) {
		q.Oldest = other.Oldest
	}
}

// Pool counts the jobs of a pool in three kinds of queues: the queue of the pool, the queues
// of these toolsets, and the queue of jobs that wait because no worker serves their tools.
func Pool(ctx context.Context, c *bus.Conn, pool string, toolsets ...string) (sum Queue, err error) {
	tokens := append([]string{pool, wire.WaitingQueue(pool)}, toolsets...)
	slices.Sort(tokens)
	for _, token := range slices.Compact(tokens) {
		q, err := QueueOf(ctx, c, token)
		if err != nil {
			return sum, err
		}
		sum.add(q)
	}
	return sum, nil
}

// QueueOf counts the jobs in the queue with a token. After a restart of the server, the
// queue's consumer is missing until a worker comes; until then every job counts as pending. A
// replica that is behind may answer.
func QueueOf(ctx context.Context, c *bus.Conn, token string) (q Queue, err error) {
	durable, err := provision.QueueConsumer(c.Names(), token, 0, 0)
	if err != nil {
		return q, err
	}
	var info ConsumerState
	absent := token == wire.WaitingQueue(wire.PoolOf(token))
	if !absent {
		info, err = Consumer(ctx, c, durable.Stream, durable.Name)
		if absent = errors.Is(err, bus.ErrNotFound); err != nil && !absent {
			return q, err
		}
	}
	q.Pending, q.InFlight = info.Pending, info.InFlight
	if info.Pending == 0 && !absent {
		return q, nil
	}
	for _, filter := range durable.Filters {
		n, first, err := c.CountAfter(ctx, durable.Stream, filter, info.Delivered.Stream)
		if err != nil {
			return q, fmt.Errorf("ask about queue %s: %w", token, err)
		}
		if absent {
			q.Pending += n
		}
		if n > 0 && (q.Oldest.IsZero() || first.Before(q.Oldest)) {
			q.Oldest = first
		}
	}
	return q, nil
}
