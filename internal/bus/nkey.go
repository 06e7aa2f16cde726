package bus

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// nkeyFile is the nkey file of a connection. It is read at every connect, so a new key in the
// file takes effect at the next connect. The NATS client by itself would read only the secret
// half of the key again. Certificates and credentials it does read again as a whole.
type nkeyFile struct {
	path string
	conn atomic.Pointer[nats.Conn] // nil before the first connect has succeeded
	in   interface{ InProcessConn() (net.Conn, error) }
	dial net.Dialer
}

// dialTimeout limits one try to connect. It is the limit of the client's own dialer.
const dialTimeout = 2 * time.Second

// option returns the client option with the key. The error says why the file has no key.
func (k *nkeyFile) option() (nats.Option, error) {
	key, err := nats.NkeyOptionFromSeed(k.path)
	if err != nil {
		return nil, fmt.Errorf("read the nkey seed %s: %w", k.path, err)
	}
	return func(o *nats.Options) error {
		if k.in != nil {
			o.InProcessServer = k
		} else {
			o.CustomDialer = k
		}
		return key(o)
	}, nil
}

// read loads the key that is now in the file into the client's options. The client calls it
// through Dial and InProcessConn, before it sends the key. At that time the client holds its
// lock, so no other goroutine reads its options.
func (k *nkeyFile) read() {
	nc := k.conn.Load()
	if nc == nil {
		return
	}
	// If the file is unreadable, the old key stays, and the server decides about it.
	if key, err := nats.NkeyOptionFromSeed(k.path); err == nil {
		_ = key(&nc.Opts)
	}
}

// Dial implements [nats.CustomDialer].
func (k *nkeyFile) Dial(network, address string) (net.Conn, error) {
	k.read()
	return k.dial.Dial(network, address)
}

// InProcessConn implements [nats.InProcessConnProvider].
func (k *nkeyFile) InProcessConn() (net.Conn, error) {
	k.read()
	return k.in.InProcessConn()
}
