// Package daemon holds the parts that a long-running program needs around its work: flags and
// signals, the connection, metrics and health. The command toolfleet and workers written in Go
// share it.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// Serve runs work until ctx ends or work fails. If addr is not empty, it also runs an HTTP
// server. The HTTP server stops only after the drain, so that the last metrics can still be
// read. If the HTTP server fails, Serve cancels work.
func Serve(ctx context.Context, addr string, reg *prometheus.Registry, ready func(context.Context) error, log *slog.Logger, work func(context.Context) error) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group errgroup.Group
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	if addr != "" {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("listen for HTTP: %w; --http names another address, for example 127.0.0.1:0", err)
		}
		log.Info("serving /metrics, /healthz and /readyz", "address", l.Addr().String())
		group.Go(func() error {
			defer cancel()
			return telemetry.Serve(serving, l, telemetry.Handler(reg, ready), log)
		})
	}
	err := work(working)
	stop()
	return errors.Join(err, group.Wait())
}

// Usable returns an error if a daemon cannot work now, because there is no connection or a
// stream is missing. It does not read the streams, because a worker's identity may not read
// all of them.
func Usable(ctx context.Context, conn *bus.Conn) error {
	if !conn.Connected() {
		return errors.New("not connected to NATS")
	}
	names := conn.Names()
	for _, stream := range []string{bus.Batches, bus.Jobs, bus.Calls, bus.Results, bus.Replies} {
		if _, err := inspect.Stream(ctx, conn, names.Stream(stream)); err != nil {
			return err
		}
	}
	return nil
}

// SafeToStore returns an error if the server is known to lose acknowledged messages in a power
// failure, unless the setting unsafe_sync accepts that. If the server does not report how it
// syncs, SafeToStore only logs a warning.
func SafeToStore(ctx context.Context, cfg *config.Config, conn *bus.Conn, log *slog.Logger) error {
	const how = "set jetstream { sync_interval: always } on the NATS server"
	switch mode := conn.SyncMode(ctx); {
	case mode == bus.SyncAlways:
	case cfg.UnsafeSync:
		log.Warn("a power failure may lose what the NATS server has acknowledged; unsafe_sync accepts that", "sync", mode)
	case mode == bus.SyncInterval:
		return errors.New("the NATS server does not sync what it acknowledges, so a power failure may lose accepted batches: " + how +
			", or accept that with unsafe_sync: true (" + config.Env("unsafe_sync") + "=true)")
	default:
		log.Warn("the NATS server does not report whether it syncs what it acknowledges: " + how + "; unsafe_sync: true silences this")
	}
	return nil
}

// AnyServer is the NATS server that programs use when the settings name none.
const AnyServer = "nats://127.0.0.1:4222"

// Connect connects to the server of the settings, or to nats://127.0.0.1:4222 if they name none.
// name appears in the server's list of connections.
func Connect(ctx context.Context, cfg *config.Config, name string, log *slog.Logger) (*bus.Conn, error) {
	return ConnectSaying(ctx, cfg, name, log, func(text string) {
		if log != nil {
			log.Warn(text)
		}
	})
}

// ConnectSaying is [Connect] for a caller that wants to know about an unreachable server. It
// calls say once no server has answered, and then goes on trying.
func ConnectSaying(ctx context.Context, cfg *config.Config, name string, log *slog.Logger, say func(string)) (*bus.Conn, error) {
	o := cfg.Bus(name, log)
	if o.URL == "" {
		o.URL = AnyServer
	}
	o.OnUnreached = func(where string, timeout time.Duration) {
		say(fmt.Sprintf("no NATS server answers at %s; trying for %v. `toolfleet nats` starts one, --nats or NATS_URL names another", where, timeout))
	}
	return bus.Connect(ctx, o)
}
