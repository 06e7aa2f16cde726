package mcptool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Config says what server to run.
type Config struct {
	Server  schemas.Server
	Dir     string // the folder of the tools file
	Secrets secrets.Folder
	Version string // the version of toolfleet, for the server
	// CancelGrace is how long a program may take to answer a call that was cut off. After
	// that, the program is killed. Default 300 ms.
	CancelGrace time.Duration
	Logger      *slog.Logger
	// Sandbox confines the program. Nil: it may do what this process may.
	Sandbox *sandbox.Box
}

const defaultCancelGrace = 300 * time.Millisecond

func (c Config) log(message string, args ...any) {
	if c.Logger != nil {
		c.Logger.Debug(message, append([]any{"server", c.Server.Name}, args...)...)
	}
}

// value returns the text of a header or variable.
func (c Config) value(v schemas.HTTPValue) (string, error) {
	switch {
	case v.Secret != "":
		text, err := c.Secrets.Read(v.Secret)
		return v.Prefix + text, err
	case v.Env != "":
		text := os.Getenv(v.Env)
		if text == "" {
			return "", fmt.Errorf("%s: the environment variable %s is not set", v.Name, v.Env)
		}
		return v.Prefix + text, nil
	}
	return v.Template, nil
}

// LockPath returns the path of the lock file, or "" if the entry names none.
func (c Config) LockPath() string {
	if c.Server.Lock == "" || filepath.IsAbs(c.Server.Lock) {
		return c.Server.Lock
	}
	return filepath.Join(c.Dir, c.Server.Lock)
}

// Server runs the tools of one server. It is safe for concurrent use.
type Server struct {
	cfg     Config
	pool    *pool
	listed  List // the definitions in force: see accepted
	tools   []Served
	refused []Refusal

	users   *atomic.Int32   // servers that share the pool; closing the last one ends the processes
	closing context.Context // ends when the last of these servers is closed
	close   context.CancelCauseFunc
}

// Served is a tool of a server.
type Served struct {
	schemas.Tool
	Ask    bool // a person has to allow each call
	Runner tool.Runner
}

// Look starts a server, lists its tools and ends the server. Its error is for a person at a
// terminal: it has what the program printed, and advice.
func Look(ctx context.Context, cfg Config) (List, error) {
	s, listed, err := cfg.start(ctx)
	if err != nil {
		p := ProblemOf(err)
		if p.Printed != "" {
			err = fmt.Errorf("%w. It printed: %s", err, p.Printed)
		}
		if p.Advice != "" {
			err = fmt.Errorf("%w\n%s", err, p.Advice)
		}
		return List{}, err
	}
	s.close()
	return listed, nil
}

// Open returns a server with its tools. If there is a lock file, the tools are the accepted
// ones, and the server need not run. Otherwise Open starts the server. The error says why the
// server cannot be started.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	s := newServer(cfg)
	accepted, err := s.accepted(ctx)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.serve(accepted)
	return s, nil
}

// serve sets the tools and refusals of the server, made from the definitions in force.
func (s *Server) serve(accepted List) {
	cfg := s.cfg
	s.listed, s.tools, s.refused = accepted, nil, nil
	for _, r := range accepted.Refused {
		wanted := func(name string) bool { return quoted(name) == r.Name }
		if len(cfg.Server.Tools) == 0 || slices.ContainsFunc(cfg.Server.Tools, wanted) {
			s.refused = append(s.refused, r)
		}
	}
	for _, name := range cfg.Server.Tools {
		if _, ok := accepted.find(name); !ok && !slices.ContainsFunc(s.refused, func(r Refusal) bool { return r.Name == quoted(name) }) {
			s.refused = append(s.refused, Refusal{name, "the server has no such tool"})
		}
	}
	for _, d := range accepted.Tools {
		if len(cfg.Server.Tools) > 0 && !slices.Contains(cfg.Server.Tools, d.Name) {
			continue
		}
		promise, ask, err := Promise(cfg.Server, d)
		if err != nil {
			s.refused = append(s.refused, Refusal{quoted(d.Name), err.Error()})
			continue
		}
		s.tools = append(s.tools, Served{promise, ask, newRunner(s, promise, d)})
	}
}

func newServer(cfg Config) *Server {
	s := &Server{cfg: cfg, pool: newPool(max(cfg.Server.Processes, 1), cfg.Server.Shared), users: &atomic.Int32{}}
	s.users.Store(1)
	s.closing, s.close = context.WithCancelCause(context.Background())
	return s
}

// accepted returns the definitions in force: those of the lock file or, without one, those
// that the server lists.
func (s *Server) accepted(ctx context.Context) (List, error) {
	if path := s.cfg.LockPath(); path != "" {
		lock, err := ReadLock(path)
		return List{Tools: lock.Definitions()}, err
	}
	var listed List
	first := s.pool.slots[0]
	_, err := first.open(ctx, func(ctx context.Context) (started *session, err error) {
		started, listed, err = s.cfg.start(ctx)
		return started, err
	})
	return listed, err
}

// Warm starts the first process, if there is none.
func (s *Server) Warm(ctx context.Context) error {
	_, err := s.pool.slots[0].open(ctx, s.start)
	return err
}

func (s *Server) start(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.closing, func() { cancel(errClosed) })()
	if s.closing.Err() != nil {
		return nil, errClosed
	}
	made, _, err := s.cfg.start(ctx)
	if err != nil && s.cfg.Logger != nil && s.closing.Err() == nil {
		s.cfg.Logger.Warn("a server could not be started; its calls fail until it can be",
			"server", s.cfg.Server.Name, "err", err, "printed", ProblemOf(err).Printed)
	}
	return made, err
}

// Tools returns the tools that the server serves.
func (s *Server) Tools() []Served { return s.tools }

// Refuse stops a tool from being served. Call it before any call runs.
func (s *Server) Refuse(t Served, why string) {
	s.tools = slices.DeleteFunc(s.tools, func(own Served) bool { return own.Name == t.Name })
	s.refused = append(s.refused, Refusal{t.Name, why})
}

// Refused returns the tools that are listed and not served.
func (s *Server) Refused() []Refusal { return s.refused }

// Name returns the name of the server.
func (s *Server) Name() string { return s.cfg.Server.Name }

// Entry returns the server's entry in the tools file.
func (s *Server) Entry() schemas.Server { return s.cfg.Server }

// Down returns why the server could not be started, or nil. It also returns nil if no call has
// needed the server yet, or if the server has ended since its start: the next call starts it.
func (s *Server) Down() error {
	for _, slot := range s.pool.slots {
		if err := slot.state(); err != nil {
			return err
		}
	}
	return nil
}

// errClosed ends the start of a process.
var errClosed = errors.New("the worker ends")

// Close ends the processes, including those that are starting. If a server from [Server.Again]
// still uses the processes, they stay. The caller makes sure that no call of this server runs.
func (s *Server) Close() {
	if s.users.Add(-1) > 0 {
		return
	}
	s.close(errClosed)
	var wg sync.WaitGroup
	for _, slot := range s.pool.slots {
		wg.Go(func() {
			slot.starting <- struct{}{} // wait for a start under way
			defer func() { <-slot.starting }()
			if session := slot.take(); session != nil {
				session.close()
			}
		})
	}
	wg.Wait()
}
