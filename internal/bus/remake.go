package bus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// KeepRemade makes again, until ctx ends, what a server may have lost in a power cut or an operator
// has deleted: the streams that are not synced, since none of them holds the truth, and the given
// durables. It checks after every reconnect, and when a puller finds nothing to pull from. It never
// makes a stream that holds the truth: a person has to find out where that went.
func (c *Conn) KeepRemade(ctx context.Context, p Provision, consumers ...Consumer) {
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
		case <-c.missing:
		}
		if err := c.remake(ctx, p, consumers); err != nil && ctx.Err() == nil {
			c.log.Error("streams and consumers cannot be looked after; what is missing is made when a daemon starts", "err", err)
		}
	}
}

func (c *Conn) remake(ctx context.Context, p Provision, consumers []Consumer) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var errs []error
	for _, want := range c.streams(p.WithDefaults()) {
		if want.PersistMode == jetstream.AsyncPersistMode {
			errs = append(errs, Patiently(ctx, func(ctx context.Context) error { return c.ensureStream(ctx, want) }))
		}
	}
	for _, want := range consumers {
		errs = append(errs, Patiently(ctx, func(ctx context.Context) error { return c.EnsureConsumer(ctx, want) }))
	}
	return errors.Join(errs...)
}
