package provision

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
)

// KeepRemade makes lost streams and consumers again until ctx ends. A power cut or an operator
// may have removed them. It makes only the given consumers, and the streams that are not
// synced: these do not hold the truth. If a stream that holds the truth is missing, a person
// has to find out why. KeepRemade checks after every reconnect, and when a puller finds
// nothing to pull from.
func KeepRemade(ctx context.Context, c *bus.Conn, p Config, consumers ...Consumer) {
	again := make(chan struct{}, 1)
	defer c.OnReconnect(func() {
		select {
		case again <- struct{}{}:
		default:
		}
	})()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-c.Missing():
		}
		if err := remake(ctx, c, p, consumers); err != nil && ctx.Err() == nil {
			c.Logger().Error("streams and consumers cannot be looked after; what is missing is made when a daemon starts", "err", err)
		}
	}
}

// deletion is how long a server may need to remove the files of a deleted stream. It needs
// this time after it has reported that the stream is gone. If a stream of the same name is
// made within this time, the server removes the files of the new stream too. That stream then
// stores nothing until the server restarts, and reports no error (nats-server 2.15.2).
const deletion = 2 * time.Second

func remake(ctx context.Context, c *bus.Conn, p Config, consumers []Consumer) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var errs []error
	for _, want := range streams(c.Names(), p.WithDefaults()) {
		if want.PersistMode == jetstream.AsyncPersistMode {
			errs = append(errs, Patiently(ctx, func(ctx context.Context) error {
				if _, err := c.JetStream().Stream(ctx, want.Name); errors.Is(err, jetstream.ErrStreamNotFound) {
					select {
					case <-time.After(deletion):
					case <-ctx.Done():
					}
				}
				if err := ensureStream(ctx, c, want); !errors.Is(err, errNotOurs) {
					return err
				}
				return nil // a coordinator makes the stream when it is asked for the consumers
			}))
		}
	}
	for _, want := range consumers {
		errs = append(errs, Patiently(ctx, func(ctx context.Context) error { return EnsureConsumer(ctx, c, want) }))
	}
	return errors.Join(errs...)
}
