// Package devserver runs a NATS server inside this process. `toolfleet dev`, `toolfleet nats`
// and every test that needs a server use it.
//
// An acknowledged message survives a power failure: the server syncs each stored message to
// the disk before it acknowledges the message. The default of nats-server is different. With
// it, a test lost 80 % of the acknowledged messages in a power failure. A longer
// [Options.SyncInterval] is faster, but a power failure may lose the messages of the interval.
//
// A data directory belongs to one server at a time, which holds a lock in it. The server
// listens only if Options say so. It has no monitoring port, because that port would have no
// authentication. It leaves signals to the program. JetStream may not use a quarter of the
// free disk, unless a configuration file limits JetStream itself.
//
// The server has no users and no passwords, unless [Options.Config] names some. Every client
// that can connect to such a server may do everything. If other machines can reach such a
// server, it starts only with [Options.Open].
package devserver

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Options say where the server listens and where it keeps its data. The zero value is a server that
// only this process can reach, with a temporary folder for its data.
type Options struct {
	// Listen is host:port for clients, for example 127.0.0.1:4222. Port 0 takes a free port.
	// "": the server opens no port, and only InProcessConn reaches it.
	Listen string
	// DataDir is the folder of the streams. It is created with mode 0700. "": a temporary
	// folder that Shutdown removes.
	DataDir string
	// SyncInterval is the time between two syncs to the disk. A power failure may lose
	// messages that were acknowledged in that time. 0: the server syncs before every
	// acknowledgement.
	SyncInterval time.Duration
	// MaxPayload is the largest message in bytes, headers included. 0: [DefaultMaxPayload].
	MaxPayload int32
	// Config is a nats-server configuration file, for its accounts and users. If these Options
	// have a setting of the file too, the Options count: see [ReadConfig]. The file's
	// monitoring port is not opened. The server reads the file at every start and at Reload.
	// "": no file.
	Config string
	// Open lets a server without users listen where other machines can reach it.
	Open bool
	// Logger gets the server's own log. Nil: no log.
	Logger *slog.Logger
}

// DefaultMaxPayload is the largest message in bytes if Options.MaxPayload is 0.
const DefaultMaxPayload = server.MAX_PAYLOAD_SIZE

// readyIn limits how long a start may take, including the recovery of the stored streams.
const readyIn = 2 * time.Minute

// errDown is the error of InProcessConn and Reload while the server is stopped.
var errDown = errors.New("the embedded NATS server is stopped")

// Server is an embedded server, running or stopped. Safe for concurrent use.
type Server struct {
	opts      Options
	temporary bool // Shutdown removes DataDir
	unlock    func() error

	mu  sync.Mutex
	srv *server.Server // guarded by mu; nil while stopped
	// addr is where the server listens. A restarted server takes the same port. Guarded by mu.
	addr string
}

// Start starts a server and returns when it is ready for clients. The error says what prevents
// the start (a port in use, a directory that another server holds) and what to do about it.
func Start(o Options) (*Server, error) {
	s := &Server{opts: o, addr: o.Listen}
	if err := s.claimDataDir(); err != nil {
		return nil, err
	}
	if err := s.Restart(); err != nil {
		s.releaseDataDir()
		return nil, err
	}
	return s, nil
}

// URL returns the address for clients, or "" if the server does not listen.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addr == "" {
		return ""
	}
	return "nats://" + s.addr
}

// InProcessConn returns a connection without a socket. It fails while the server is stopped.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	srv := s.srv
	s.mu.Unlock()
	if srv == nil {
		return nil, errDown
	}
	return srv.InProcessConn()
}

// DataDir returns the directory of the streams.
func (s *Server) DataDir() string { return s.opts.DataDir }

// SyncAlways reports whether the server syncs every stored message to the disk before it
// acknowledges the message.
func (s *Server) SyncAlways() bool { return s.opts.SyncInterval == 0 }

// Stop stops the server and waits until it has ended. The data directory stays locked. Restart
// starts the server with this directory again.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

// Restart starts the server with the same data and on the same address. If the server runs,
// Restart stops it first.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	srv, addr, err := run(s.opts, s.addr)
	if err != nil {
		return err
	}
	s.srv, s.addr = srv, addr
	return nil
}

// Reload reads [Options.Config] again while the server runs. It disconnects users that were
// removed.
func (s *Server) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.srv == nil {
		return errDown
	}
	opts, err := settings(s.opts, s.addr)
	if err == nil {
		err = s.srv.ReloadOptions(opts)
	}
	if err != nil {
		return fmt.Errorf("reload the embedded NATS server: %w", err)
	}
	return nil
}

// Shutdown stops the server for good, waits until it has ended, and releases the data directory. A
// second call does nothing.
func (s *Server) Shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	s.releaseDataDir()
}

// stop stops the server if it runs. The caller holds mu.
func (s *Server) stop() {
	if s.srv == nil {
		return
	}
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	s.srv = nil
}

// run starts a server at addr and waits until it is ready. If addr is "", the server does not
// listen.
func run(o Options, addr string) (*server.Server, string, error) {
	opts, err := settings(o, addr)
	if err == nil && opts.Port > 0 {
		err = portIsFree(addr)
	}
	if err != nil {
		return nil, "", err
	}
	if o.Logger != nil && o.Open && !asks(opts) && addr != "" && !local(addr) {
		o.Logger.Warn("other machines reach the NATS server and it asks nobody who they are: each of them can run every tool", "address", addr)
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, "", fmt.Errorf("configure the embedded NATS server: %w", err)
	}
	log := &logAdapter{out: o.Logger}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if !srv.ReadyForConnections(readyIn) || !srv.JetStreamEnabled() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, "", fmt.Errorf("start the embedded NATS server over %s: %w", o.DataDir, log.cause())
	}
	if o.Config == "" { // a configuration file itself decides who may read what
		err = shareSettings(srv)
	}
	if err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, "", err
	}
	if addr != "" {
		addr = srv.Addr().String()
	}
	return srv, addr, nil
}

// settings returns the server's options for Options and an address. If addr is "", the server
// does not listen.
func settings(o Options, addr string) (*server.Options, error) {
	opts, err := read(o.Config)
	if err != nil {
		return nil, err
	}
	fill(opts, o)
	opts.DontListen = addr == ""
	if err := listen(opts, addr); err != nil {
		return nil, err
	}
	return opts, guarded(o, opts, addr)
}

// read parses a configuration file. "" gives the options of an empty file.
func read(file string) (*server.Options, error) {
	if file == "" {
		return &server.Options{}, nil
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the NATS configuration %s: %w", file, err)
	}
	return opts, nil
}

// fill sets the options that a configuration file must not change.
func fill(opts *server.Options, o Options) {
	opts.ServerName = cmp.Or(opts.ServerName, "toolfleet")
	opts.JetStream, opts.StoreDir = true, o.DataDir
	opts.SyncAlways, opts.SyncInterval = o.SyncInterval == 0, o.SyncInterval
	opts.MaxPayload, opts.MaxControlLine = o.MaxPayload, server.MAX_CONTROL_LINE_SIZE
	if opts.MaxPayload == 0 {
		opts.MaxPayload = DefaultMaxPayload
	}
	opts.HTTPHost, opts.HTTPPort, opts.HTTPSPort = "", 0, 0
	opts.NoSigs = true
}

// listen sets host and port. An empty address opens no port.
func listen(opts *server.Options, addr string) error {
	if addr == "" {
		opts.Host, opts.Port = "", 0
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q is not host:port (for example 127.0.0.1:4222): %w", addr, err)
	}
	if opts.Host = host; host == "" {
		opts.Host = "0.0.0.0"
	}
	if opts.Port, err = strconv.Atoi(port); err != nil || opts.Port < 0 || opts.Port > 65535 {
		return fmt.Errorf("listen address %q: the port is a number from 0 to 65535", addr)
	}
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	return nil
}

// portIsFree returns an error if the port is taken. Without this check, the server would only
// log that.
func portIsFree(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; stop what listens there (perhaps another toolfleet or nats-server), "+
			"connect to it with --nats nats://%s, or choose another address with --listen", addr, err, addr)
	}
	return l.Close()
}

// shareSettings lets clients of the one account ask for the server's JetStream settings. A
// coordinator learns from these settings whether the server syncs what it stores. By default,
// only the system account may read them.
func shareSettings(srv *server.Server) error {
	const subject = "$SYS.REQ.SERVER.PING.JSZ"
	if err := srv.SystemAccount().AddServiceExport(subject, nil); err != nil {
		return fmt.Errorf("share the embedded NATS server's settings: %w", err)
	}
	if err := srv.GlobalAccount().AddServiceImport(srv.SystemAccount(), subject, subject); err != nil {
		return fmt.Errorf("share the embedded NATS server's settings: %w", err)
	}
	return nil
}

// claimDataDir creates the data directory and locks it.
func (s *Server) claimDataDir() (err error) {
	if s.opts.DataDir == "" {
		s.temporary = true
		if s.opts.DataDir, err = os.MkdirTemp("", "toolfleet-nats-"); err != nil {
			return fmt.Errorf("make a temporary data directory: %w", err)
		}
	}
	if err := os.MkdirAll(s.opts.DataDir, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w; --data names another", err)
	}
	s.unlock, err = lock(s.opts.DataDir)
	return err
}

// releaseDataDir unlocks the data directory, and removes it if it is temporary. A second call does
// nothing.
func (s *Server) releaseDataDir() {
	if s.unlock == nil {
		return
	}
	_ = s.unlock()
	s.unlock = nil
	if s.temporary {
		_ = os.RemoveAll(s.opts.DataDir)
	}
}
