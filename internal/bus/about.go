package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ServerState is what the connected server reports about itself.
type ServerState struct {
	Name      string    `json:"name"`
	Version   string    `json:"ver"`
	JetStream bool      `json:"jetstream"`
	Time      time.Time `json:"time"`
}

// AboutServer asks the server for its state. Servers before 2.11, and servers that this user may
// not ask, do not tell it.
func (c *Conn) AboutServer(ctx context.Context) (ServerState, error) {
	var info struct {
		Server ServerState `json:"server"`
	}
	if err := c.call(ctx, "$SYS.REQ.USER.INFO", struct{}{}, &info); err != nil {
		return ServerState{}, fmt.Errorf("ask about the server: %w", err)
	}
	return info.Server, nil
}

// StreamState is what a stream holds.
type StreamState struct {
	Messages, Bytes       uint64
	MaxMessages, MaxBytes int64 // 0 or less: no bound of its own
}

// AboutStream returns what a stream holds, and its bounds.
func (c *Conn) AboutStream(ctx context.Context, stream string) (StreamState, error) {
	var info struct {
		Config struct {
			MaxMessages int64 `json:"max_msgs"`
			MaxBytes    int64 `json:"max_bytes"`
		} `json:"config"`
		State struct {
			Messages uint64 `json:"messages"`
			Bytes    uint64 `json:"bytes"`
		} `json:"state"`
	}
	if err := c.call(ctx, api("STREAM", "INFO", stream), struct{}{}, &info); err != nil {
		return StreamState{}, fmt.Errorf("ask about stream %s: %w", stream, err)
	}
	return StreamState{info.State.Messages, info.State.Bytes, info.Config.MaxMessages, info.Config.MaxBytes}, nil
}

// ConsumerState is how far a consumer has come.
type ConsumerState struct {
	Delivered struct {
		Stream uint64 `json:"stream_seq"` // the newest message that was delivered to any worker
	} `json:"delivered"`
	Pending  uint64 `json:"num_pending"`     // messages that were never delivered
	InFlight uint64 `json:"num_ack_pending"` // in hand, or given back with a delay
	Waiting  int    `json:"num_waiting"`     // pull requests that wait for messages
}

// AboutConsumer returns how far a consumer has come. The error is ErrNotFound when the consumer
// does not exist.
func (c *Conn) AboutConsumer(ctx context.Context, stream, name string) (s ConsumerState, err error) {
	if err = c.call(ctx, api("CONSUMER", "INFO", stream, name), struct{}{}, &s); err == nil {
		return s, nil
	}
	var refused *jetstream.APIError
	if errors.As(err, &refused) && refused.ErrorCode == jetstream.JSErrCodeConsumerNotFound {
		err = ErrNotFound
	}
	return s, fmt.Errorf("ask about consumer %s of stream %s: %w", name, stream, err)
}

// Queue counts the jobs of a pool.
type Queue struct {
	Pending  uint64    // never delivered
	InFlight uint64    // delivered and not settled, or given back with a delay
	Oldest   time.Time // when the oldest pending one was stored; zero when none is pending
}

// AboutPool counts the jobs of a pool. When the pool's durable is missing (the server has restarted
// and no worker has come since), every job of the pool counts as pending.
func (c *Conn) AboutPool(ctx context.Context, pool string) (q Queue, err error) {
	durable, err := c.PoolConsumer(pool, 0, 0)
	if err != nil {
		return q, err
	}
	info, err := c.AboutConsumer(ctx, durable.Stream, durable.Name)
	absent := errors.Is(err, ErrNotFound)
	if err != nil && !absent {
		return q, err
	}
	q.Pending, q.InFlight = info.Pending, info.InFlight
	if info.Pending == 0 && !absent {
		return q, nil
	}
	for _, filter := range durable.Filters {
		n, first, err := c.after(ctx, durable.Stream, filter, info.Delivered.Stream)
		if err != nil {
			return q, fmt.Errorf("ask about pool %s: %w", pool, err)
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

// after counts the messages behind the sequence seq of a stream that match filter, and returns when
// the first of them was stored.
func (c *Conn) after(ctx context.Context, stream, filter string, seq uint64) (n uint64, first time.Time, err error) {
	var found []Msg
	end, err := c.page(ctx, stream, getRequest{NextFor: filter, Seq: seq + 1, Batch: 1}, &found)
	if errors.Is(err, ErrNotFound) {
		return 0, first, nil
	}
	if err != nil || len(found) == 0 {
		return 0, first, streamError(err)
	}
	return end.pending + 1, found[0].Time, nil
}

// Values returns what a bucket holds, by key, as seen by the replica that answers, which may be
// behind. It makes no consumer.
func (c *Conn) Values(ctx context.Context, bucket string) (map[string][]byte, error) {
	prefix := "$KV." + bucket + "."
	found, err := c.Glance(ctx, "KV_"+bucket, prefix+">")
	if err != nil {
		return nil, err
	}
	values := make(map[string][]byte, len(found))
	for _, m := range found {
		if m.Header.Get("KV-Operation") == "" && m.Header.Get("Nats-Marker-Reason") == "" {
			values[strings.TrimPrefix(m.Subject, prefix)] = m.Data
		}
	}
	return values, nil
}

// Reconnects counts how often a lost connection came back.
func (c *Conn) Reconnects() uint64 { return c.nc.Stats().Reconnects }
