package main

import (
	"context"
	"os/exec"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// asynq runs on a Redis that appends to a file and syncs it every second. Results are kept in their
// tasks, and published too. It polls every 1 ms; its default is 1 s.

func redisAt(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: 64, PoolTimeout: 30 * time.Second})
}

// listenRedis passes the messages published on a channel to take.
func listenRedis(r *redis.Client, channel string, take func([]byte)) error {
	subscription := r.Subscribe(context.Background(), channel)
	if _, err := subscription.Receive(context.Background()); err != nil {
		return err
	}
	go func() {
		for m := range subscription.Channel(redis.WithChannelSize(1 << 16)) {
			take([]byte(m.Payload))
		}
	}()
	return nil
}

func startAsynq(f *fleet, redisServer string) error {
	addr := freeAddr()
	host, port := split(addr)
	server, err := f.start("server", exec.Command(redisServer, "--bind", host, "--port", port, "--dir", f.dir,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", ""))
	if err != nil {
		return err
	}
	if err := server.listens(addr); err != nil {
		return err
	}
	for _, role := range []string{"coordinator", "worker"} {
		if err := f.child(role, "asynq-"+role, addr); err != nil {
			return err
		}
	}
	r := redisAt(addr)
	f.closers = append(f.closers, func() { _ = r.Close() })
	queue := asynq.NewClientFromRedisClient(r)
	var in mailboxes
	f.submit = func(ctx context.Context, l load, session int, n uint64) error {
		if _, err := queue.EnqueueContext(ctx, asynq.NewTask("batch", l.batch(session, n)), asynq.Queue("batches")); err != nil {
			return err
		}
		return in.await(ctx, session, func(body []byte) (bool, error) { return l.answered(body, n) })
	}
	return listenRedis(r, "replies", func(body []byte) { in.of(int(decode(body).Session)) <- body })
}

// serveAsynq runs the tasks of a queue.
func serveAsynq(r *redis.Client, queue string, run func(context.Context, *asynq.Task) error) error {
	return asynq.NewServerFromRedisClient(r, asynq.Config{
		Concurrency: 128, Queues: map[string]int{queue: 1}, TaskCheckInterval: time.Millisecond, LogLevel: asynq.ErrorLevel,
	}).Start(asynq.HandlerFunc(run))
}

func asynqCoordinator(addr string) error {
	r := redisAt(addr)
	queue := asynq.NewClientFromRedisClient(r)
	g := &gatherer{enqueue: func(ctx context.Context, f frame, i, j int) error {
		all, ctx := errgroup.WithContext(ctx) // asynq has no way to enqueue several tasks at once
		for i := i; i < j; i++ {
			all.Go(func() error {
				_, err := queue.EnqueueContext(ctx, asynq.NewTask("call", f.job(i)), asynq.Queue("calls"), asynq.Retention(time.Hour))
				return err
			})
		}
		return all.Wait()
	}}
	if err := listenRedis(r, "results", g.result); err != nil {
		return err
	}
	return serveAsynq(r, "batches", func(ctx context.Context, t *asynq.Task) error {
		reply, err := g.run(ctx, t.Payload())
		if err != nil {
			return err
		}
		return r.Publish(ctx, "replies", reply).Err()
	})
}

func asynqWorker(addr string) error {
	r := redisAt(addr)
	return serveAsynq(r, "calls", func(ctx context.Context, t *asynq.Task) error {
		decode(t.Payload()).run()
		if _, err := t.ResultWriter().Write(t.Payload()); err != nil {
			return err
		}
		return r.Publish(ctx, "results", t.Payload()).Err()
	})
}
