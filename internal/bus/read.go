package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus/status"
)

// readMessages and readBytes limit one request when many messages are read, so that neither
// the server's nor the client's buffers overflow.
const (
	readMessages = 256
	readBytes    = 8 << 20
)

// getRequest asks a stream for messages.
type getRequest struct {
	Seq       uint64   `json:"seq,omitempty"` // the first sequence to return
	LastFor   string   `json:"last_by_subj,omitempty"`
	NextFor   string   `json:"next_by_subj,omitempty"`
	MultiLast []string `json:"multi_last,omitempty"`
	UpTo      uint64   `json:"up_to_seq,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
	// StartTime, if set, replaces Seq.
	StartTime *time.Time `json:"start_time,omitempty"`
}

// Last returns the newest message of a subject, or ErrNotFound.
func (c *Conn) Last(ctx context.Context, stream, subject string) (Msg, error) {
	return c.one(ctx, stream, getRequest{LastFor: subject})
}

// First returns the oldest message that matches filter, or ErrNotFound.
func (c *Conn) First(ctx context.Context, stream, filter string) (Msg, error) {
	return c.one(ctx, stream, getRequest{NextFor: filter})
}

// Next returns the oldest message after a sequence that matches filter, or ErrNotFound.
func (c *Conn) Next(ctx context.Context, stream, filter string, after uint64) (Msg, error) {
	return c.one(ctx, stream, getRequest{NextFor: filter, Seq: after + 1})
}

// All returns every message that matches filter, in stream order. On a cluster, it makes one
// request for each message.
func (c *Conn) All(ctx context.Context, stream, filter string) ([]Msg, error) {
	if c.alone(ctx, stream) {
		return c.pages(ctx, stream, everything(filter))
	}
	var all []Msg
	for next := uint64(1); ; next = all[len(all)-1].Seq + 1 {
		m, err := c.fromLeader(ctx, stream, getRequest{NextFor: filter, Seq: next})
		if errors.Is(err, ErrNotFound) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
}

// LastOfEach returns the newest message of every subject that matches one of the filters, in
// stream order. There may be any number of filters and subjects. On a cluster, it reads all
// matching messages one by one, so use it for decisions and not for polls.
func (c *Conn) LastOfEach(ctx context.Context, stream string, filters ...string) ([]Msg, error) {
	if c.alone(ctx, stream) {
		return c.Glance(ctx, stream, filters...)
	}
	var found []Msg
	for _, filter := range filters {
		more, err := c.All(ctx, stream, filter)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return newestOfEach(found), nil
}

// Glance is like LastOfEach, but it makes few requests, and a replica that is behind may
// answer. Each message that it returns was the newest of its subject at some moment. A subject
// without a message in the result may still have one.
func (c *Conn) Glance(ctx context.Context, stream string, filters ...string) ([]Msg, error) {
	if len(filters) == 0 {
		return nil, nil
	}
	found, err := c.pages(ctx, stream, getRequest{MultiLast: filters, Batch: readMessages, MaxBytes: readBytes})
	if !errors.Is(err, errTooMany) {
		return found, err
	}
	// The server refuses requests that match more than 1,024 subjects.
	if half := len(filters) / 2; half > 0 {
		for _, part := range [][]string{filters[:half], filters[half:]} {
			more, err := c.Glance(ctx, stream, part...)
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
		}
		return newestOfEach(found), nil
	}
	all, err := c.pages(ctx, stream, everything(filters[0]))
	return newestOfEach(all), err
}

func everything(filter string) getRequest {
	return getRequest{NextFor: filter, Seq: 1, Batch: readMessages, MaxBytes: readBytes}
}

// newestOfEach keeps only the newest message of every subject. It returns them in stream
// order.
func newestOfEach(all []Msg) []Msg {
	slices.SortFunc(all, func(a, b Msg) int { return cmp.Compare(a.Seq, b.Seq) })
	at := make(map[string]int, len(all))
	for i, m := range all {
		at[m.Subject] = i
	}
	kept := all[:0]
	for i, m := range all {
		if at[m.Subject] == i {
			kept = append(kept, m)
		}
	}
	return kept
}

// one reads one message, and its result is never out of date. On a cluster it asks the
// stream's leader. On a single server it uses a direct get, which is cheaper.
func (c *Conn) one(ctx context.Context, stream string, r getRequest) (Msg, error) {
	if c.alone(ctx, stream) {
		return c.direct(ctx, stream, r)
	}
	return c.fromLeader(ctx, stream, r)
}

// alone reports whether the streams are on a single server and not on a cluster. The answer is
// the same for all streams, and does not change while the connection is to the same server. So
// alone asks only once.
func (c *Conn) alone(ctx context.Context, stream string) bool {
	server := c.nc.ConnectedServerId()
	if known := c.holder.Load(); known != nil && known.toldBy == server {
		return known.alone
	}
	var info struct {
		Cluster struct {
			Name string `json:"name"`
		} `json:"cluster"`
	}
	if err := c.Call(ctx, api("STREAM", "INFO", stream), struct{}{}, &info); err != nil {
		return false // asking the leader is correct in both cases
	}
	c.holder.Store(&holder{toldBy: server, alone: info.Cluster.Name == ""})
	return info.Cluster.Name == ""
}

// holder says whether the streams are on a single server. The connected server may be outside
// of the cluster that has the streams.
type holder struct {
	toldBy string // the id of the connected server
	alone  bool
}

// askAgain is how long fromLeader waits for the leader before it sends the request again. A
// leader that steps down does not answer, and the next leader does not get the first request.
const askAgain = time.Second

// fromLeader reads one message from the stream's leader.
func (c *Conn) fromLeader(ctx context.Context, stream string, r getRequest) (Msg, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var answer struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err := Retry(ctx, Backoff{First: minBackoff, Most: minBackoff, Jitter: true, Again: leaderless}, func() error {
		try, done := context.WithTimeout(ctx, askAgain)
		defer done()
		return c.Call(try, api("STREAM", "MSG", "GET", stream), r, &answer)
	})
	if err != nil {
		return Msg{}, fmt.Errorf("read %s%s from the leader of %s: %w", r.LastFor, r.NextFor, stream, streamError(err))
	}
	m := answer.Message
	out := Msg{Subject: m.Subject, Data: m.Data, Seq: m.Seq, Time: m.Time}
	if len(m.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			return Msg{}, fmt.Errorf("read %s%s from the leader of %s: %w", r.LastFor, r.NextFor, stream, err)
		}
		out.Header = Header(h)
	}
	return out, nil
}

// leaderless reports whether no leader answered the request. Another try may then succeed.
func leaderless(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &api) && api.ErrorCode == codeClusterNotReady
}

// direct reads one message from any server that has the stream.
func (c *Conn) direct(ctx context.Context, stream string, r getRequest) (Msg, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	body, err := json.Marshal(r)
	if err != nil {
		return Msg{}, err
	}
	m, err := c.nc.RequestWithContext(ctx, api("DIRECT", "GET", stream), body)
	if err == nil {
		var out Msg
		if out, err = stored(m); err == nil {
			return out, nil
		}
	}
	return Msg{}, fmt.Errorf("read %s%s from %s: %w", r.LastFor, r.NextFor, stream, streamError(ClientError(err)))
}

// errTooMany: more subjects match than the server returns for one request.
var errTooMany = errors.New("too many subjects match")

// pages reads page after page until the server has no more messages.
func (c *Conn) pages(ctx context.Context, stream string, r getRequest) ([]Msg, error) {
	var all []Msg
	for {
		end, err := c.page(ctx, stream, r, &all)
		if errors.Is(err, ErrNotFound) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read from %s: %w", stream, streamError(err))
		}
		if end.pending == 0 {
			return all, nil
		}
		r.Seq = end.last + 1
		// All pages must show the stream as it was at the first page.
		if len(r.MultiLast) > 0 {
			r.UpTo = end.upTo
		}
	}
}

// pageEnd is what the server reports after the last message of a page.
type pageEnd struct{ pending, last, upTo uint64 }

func (c *Conn) page(ctx context.Context, stream string, r getRequest, into *[]Msg) (pageEnd, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	body, err := json.Marshal(r)
	if err != nil {
		return pageEnd{}, err
	}
	var end pageEnd
	var failed error
	err = c.Stream(ctx, api("DIRECT", "GET", stream), nil, body, func(answer Msg) bool {
		raw := &nats.Msg{Header: nats.Header(answer.Header), Data: answer.Data}
		if status.Of(raw) == status.End {
			end = pageEnd{status.Number(raw, "Nats-Num-Pending"), status.Number(raw, "Nats-Last-Sequence"), status.Number(raw, "Nats-UpTo-Sequence")}
			return false
		}
		m, err := stored(raw)
		if err != nil {
			failed = err
			return false
		}
		*into = append(*into, m)
		return true
	})
	return end, errors.Join(err, failed)
}

// stored decodes the answer to a direct get: a message, or a status that becomes an error.
func stored(m *nats.Msg) (Msg, error) {
	switch code := status.Of(m); code {
	case 0:
	case status.NotFound:
		return Msg{}, ErrNotFound
	case status.TooMany:
		return Msg{}, errTooMany
	default:
		return Msg{}, fmt.Errorf("the server answered %d %s", code, status.Description(m))
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	if err != nil {
		return Msg{}, fmt.Errorf("a stored message without its time: %w", err)
	}
	out := Msg{Subject: m.Header.Get("Nats-Subject"), Header: Header(m.Header), Data: m.Data, Seq: status.Number(m, "Nats-Sequence"), Time: at}
	return out, nil
}

// streamError turns ErrNoResponders into ErrNoStream, because no answer means that the stream
// does not exist, or has no leader at this moment.
func streamError(err error) error {
	if errors.Is(err, ErrNoResponders) {
		return fmt.Errorf("%w (or it is not ready): %w", ErrNoStream, err)
	}
	return err
}
