package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
)

// readBucket is every value of a bucket, in the order of the keys.
func readBucket[T any](ctx context.Context, conn *bus.Conn, name string) ([]T, error) {
	bucket, err := conn.Bucket(ctx, conn.Names().Stream(name))
	if errors.Is(err, bus.ErrNoStream) {
		return nil, fmt.Errorf("%w; no fleet has run on this server yet: start `toolfleet coordinator` and `toolfleet worker`", err)
	}
	if err != nil {
		return nil, err
	}
	keys, err := bucket.Keys(ctx)
	if err != nil {
		return nil, err
	}
	values := []T{}
	for _, key := range keys {
		raw, found, err := bucket.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if !found { // gone since the listing
			continue
		}
		var value T
		if err := json.Unmarshal(raw, &value); err != nil {
			return nil, fmt.Errorf("%s in bucket %s cannot be read: %w", key, name, err)
		}
		values = append(values, value)
	}
	return values, nil
}

// What the server says of itself and of what it holds, as far as we ask.
type (
	serverInfo struct {
		Server struct {
			Name      string    `json:"name"`
			Version   string    `json:"ver"`
			JetStream bool      `json:"jetstream"`
			Time      time.Time `json:"time"`
		} `json:"server"`
	}
	streamInfo struct {
		Error  *serverError `json:"error"`
		Config struct {
			MaxMessages int64 `json:"max_msgs"`
			MaxBytes    int64 `json:"max_bytes"`
		} `json:"config"`
		State struct {
			Messages uint64 `json:"messages"`
			Bytes    uint64 `json:"bytes"`
		} `json:"state"`
	}
	consumerInfo struct {
		Error    *serverError `json:"error"`
		Pending  int          `json:"num_pending"`
		InFlight int          `json:"num_ack_pending"`
		Waiting  int          `json:"num_waiting"`
	}
	serverError struct {
		Code        int    `json:"code"`
		Description string `json:"description"`
	}
)

// errAbsent: the server has no such stream or consumer.
var errAbsent = errors.New("is not there")

// asks makes a request of the server itself.
func asks[T any](ctx context.Context, conn *bus.Conn, subject string) (answer T, err error) {
	m, err := conn.Request(ctx, subject, nil, nil)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return answer, fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	return answer, nil
}

func aboutServer(ctx context.Context, conn *bus.Conn) (serverInfo, error) {
	return asks[serverInfo](ctx, conn, "$SYS.REQ.USER.INFO")
}

// aboutStream is for a stream's whole name.
func aboutStream(ctx context.Context, conn *bus.Conn, name string) (streamInfo, error) {
	info, err := asks[streamInfo](ctx, conn, "$JS.API.STREAM.INFO."+name)
	return info, refused(info.Error, err)
}

func aboutConsumer(ctx context.Context, conn *bus.Conn, stream, name string) (consumerInfo, error) {
	info, err := asks[consumerInfo](ctx, conn, "$JS.API.CONSUMER.INFO."+stream+"."+name)
	return info, refused(info.Error, err)
}

func refused(e *serverError, err error) error {
	switch {
	case err != nil || e == nil:
		return err
	case e.Code == 404:
		return errAbsent
	}
	return errors.New(e.Description)
}
