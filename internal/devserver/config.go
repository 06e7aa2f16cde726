package devserver

import (
	"cmp"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Said is what a nats-server configuration file says about what Options say too. What it does not say is zero.
type Said struct {
	Listen     string // host:port
	DataDir    string
	Sync       bool // it says how often: SyncInterval, 0 being always
	MaxPayload int32

	SyncInterval time.Duration
}

// ReadConfig reads what the file says, so that its reader may choose between that and Options of their own.
func ReadConfig(file string) (Said, error) {
	opts, err := read(file)
	if err != nil {
		return Said{}, err
	}
	s := Said{DataDir: opts.StoreDir, MaxPayload: opts.MaxPayload, Sync: opts.SyncInterval != 0}
	if !opts.SyncAlways {
		s.SyncInterval = opts.SyncInterval
	}
	if opts.Host != "" || opts.Port != 0 {
		s.Listen = net.JoinHostPort(cmp.Or(opts.Host, server.DEFAULT_HOST), strconv.Itoa(portOf(opts.Port)))
	}
	return s, nil
}

// portOf is the port of a file, which writes -1 for a free one, where 0 stands for the usual one.
func portOf(port int) int {
	switch port {
	case 0:
		return server.DEFAULT_PORT
	case server.RANDOM_PORT:
		return 0
	}
	return port
}
