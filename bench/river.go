package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// river runs on PostgreSQL. Outputs are kept in the rows of their jobs, and sent by NOTIFY too. It
// fetches after 1 ms and polls every 20 ms; its defaults are 100 ms and 1 s.

type batchJob struct {
	Frame []byte `json:"frame"`
}

func (batchJob) Kind() string { return "batch" }

type callJob struct {
	Frame []byte `json:"frame"`
}

func (callJob) Kind() string { return "call" }

func postgresURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable&pool_max_conns=30"
}

// startRiver starts river over the PostgreSQL whose programs are in a folder.
func startRiver(f *fleet, programs string) error {
	ctx := context.Background()
	data := filepath.Join(f.dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	var as *syscall.Credential
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		out, err := exec.Command("id", "-u", "postgres").Output()
		if err != nil {
			return err
		}
		id, _ := strconv.ParseUint(string(bytes.TrimSpace(out)), 10, 32)
		as = &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}
		if err := os.Chown(data, int(id), -1); err != nil {
			return err
		}
		if err := allowThrough(f.dir); err != nil {
			return err
		}
	}
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(programs, name), args...)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: as}
		return cmd
	}
	if out, err := command("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8").CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	commit := "off" // synced within 0.6 s
	if f.sync == "always" {
		commit = "on"
	}
	addr := freeAddr()
	host, port := split(addr)
	server, err := f.start("server", command("postgres", "-D", data, "-h", host, "-p", port, "-k", data, "-c", "max_connections=200",
		"-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB", "-c", "synchronous_commit="+commit))
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, postgresURL(addr))
	if err != nil {
		return err
	}
	f.closers = append(f.closers, pool.Close)
	if err := server.until("answers", func() bool { return pool.Ping(ctx) == nil }); err != nil {
		return err
	}
	tables, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := tables.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	for _, role := range []string{"coordinator", "worker"} {
		if err := f.child(role, "river-"+role, addr); err != nil {
			return err
		}
	}
	queue, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		return err
	}
	var in mailboxes
	f.submit = func(ctx context.Context, l load, session int, n uint64) error {
		if _, err := queue.Insert(ctx, batchJob{l.batch(session, n)}, &river.InsertOpts{Queue: "batches"}); err != nil {
			return err
		}
		return in.await(ctx, session, func(body []byte) (bool, error) { return l.answered(body, n) })
	}
	return listenPostgres(addr, "replies", func(body []byte) { in.of(int(decode(body).Session)) <- body })
}

// allowThrough lets another user reach what lies in a temporary folder.
func allowThrough(dir string) error {
	for ; dir != os.TempDir() && dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	return nil
}

// listenPostgres passes the notifications of a channel to take.
func listenPostgres(addr, channel string, take func([]byte)) error {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(postgresURL(addr))
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	go func() {
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return
			}
			if body, err := base64.StdEncoding.DecodeString(n.Payload); err == nil {
				take(body)
			}
		}
	}()
	return nil
}

func notify(ctx context.Context, pool *pgxpool.Pool, channel string, body []byte) error {
	_, err := pool.Exec(ctx, "SELECT pg_notify($1, $2)", channel, base64.StdEncoding.EncodeToString(body))
	return err
}

// serveRiver works on a queue.
func serveRiver(pool *pgxpool.Pool, queue string, workers *river.Workers) error {
	c, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Workers: workers, Queues: map[string]river.QueueConfig{queue: {MaxWorkers: 128}},
		FetchCooldown: time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		// The check is about job kinds; another process works on the ones that this process
		// inserts.
		SkipUnknownJobCheck: true,
	})
	if err != nil {
		return err
	}
	return c.Start(context.Background())
}

type riverBatches struct {
	river.WorkerDefaults[batchJob]
	pool *pgxpool.Pool
	g    *gatherer
}

func (w *riverBatches) Work(ctx context.Context, job *river.Job[batchJob]) error {
	reply, err := w.g.run(ctx, job.Args.Frame)
	if err != nil {
		return err
	}
	return notify(ctx, w.pool, "replies", reply)
}

func riverCoordinator(addr string) error {
	pool, err := pgxpool.New(context.Background(), postgresURL(addr))
	if err != nil {
		return err
	}
	queue, err := river.NewClient(riverpgxv5.New(pool), &river.Config{SkipUnknownJobCheck: true})
	if err != nil {
		return err
	}
	g := &gatherer{enqueue: func(ctx context.Context, f frame, i, j int) error {
		var jobs []river.InsertManyParams
		for ; i < j; i++ {
			jobs = append(jobs, river.InsertManyParams{Args: callJob{f.job(i)}, InsertOpts: &river.InsertOpts{Queue: "calls"}})
		}
		_, err := queue.InsertManyFast(ctx, jobs)
		return err
	}}
	if err := listenPostgres(addr, "results", g.result); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverBatches{pool: pool, g: g})
	return serveRiver(pool, "batches", workers)
}

type riverCalls struct {
	river.WorkerDefaults[callJob]
	pool *pgxpool.Pool
}

func (w *riverCalls) Work(ctx context.Context, job *river.Job[callJob]) error {
	decode(job.Args.Frame).run()
	if err := river.RecordOutput(ctx, job.Args.Frame); err != nil {
		return err
	}
	return notify(ctx, w.pool, "results", job.Args.Frame)
}

func riverWorker(addr string) error {
	pool, err := pgxpool.New(context.Background(), postgresURL(addr))
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverCalls{pool: pool})
	return serveRiver(pool, "calls", workers)
}
