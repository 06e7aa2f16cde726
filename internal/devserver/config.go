package devserver

import (
	"cmp"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// FileSettings holds the settings of a nats-server configuration file that Options have too. A
// setting is zero if the file does not have it.
type FileSettings struct {
	Listen     string // host:port
	DataDir    string
	Sync       bool // the file sets SyncInterval, in which 0 then means always
	MaxPayload int32

	SyncInterval time.Duration
}

// ReadConfig reads a configuration file. With the result, the caller can choose between the
// file's settings and its own Options.
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

// portOf translates the port of a configuration file. In a file, -1 means any free port. A
// file without a port means the default port.
func portOf(port int) int {
	switch port {
	case 0:
		return server.DEFAULT_PORT
	case server.RANDOM_PORT:
		return 0
	}
	return port
}
