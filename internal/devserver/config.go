package devserver

import (
	"cmp"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// FileSettings holds those settings of a nats-server configuration file that Options have too. A
// setting that the file does not have is zero.
type FileSettings struct {
	Listen     string // host:port
	DataDir    string
	Sync       bool // the file sets SyncInterval; then 0 means always
	MaxPayload int32

	SyncInterval time.Duration
}

// ReadConfig reads a configuration file, so that the caller can choose between its settings and its
// own Options.
func ReadConfig(file string) (FileSettings, error) {
	opts, err := read(file)
	if err != nil {
		return FileSettings{}, err
	}
	s := FileSettings{DataDir: opts.StoreDir, MaxPayload: opts.MaxPayload, Sync: opts.SyncInterval != 0}
	if !opts.SyncAlways {
		s.SyncInterval = opts.SyncInterval
	}
	if opts.Host != "" || opts.Port != 0 {
		s.Listen = net.JoinHostPort(cmp.Or(opts.Host, server.DEFAULT_HOST), strconv.Itoa(portOf(opts.Port)))
	}
	return s, nil
}

// portOf translates the port of a file. A file writes -1 for any free port, and leaves out the
// default port (0).
func portOf(port int) int {
	switch port {
	case 0:
		return server.DEFAULT_PORT
	case server.RANDOM_PORT:
		return 0
	}
	return port
}
