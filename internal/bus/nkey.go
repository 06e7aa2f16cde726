package bus

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// nkeyFile is the nkey file of a connection. It is read at every connect, so another key in
// the file takes effect at the next one. The NATS client itself would read only the secret
// half of the key again. It does read certificates and credentials again as a whole.
type nkeyFile struct {
	path string
	conn atomic.Pointer[nats.Conn] // nil until the first connect has succeeded
	in   interface{ InProcessConn() (net.Conn, error) }
	dial net.Dialer
}

// dialTimeout limits one try to connect, as in the client's own dialer.
const dialTimeout = 2 * time.Second

// option returns the client option with the key, or an error that says why the file has
// none.
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

// read takes over the key that is now in the file. The client calls it through Dial and
// InProcessConn, before it sends the key. It holds its lock then, so nothing else reads its
// options.
func (k *nkeyFile) read() {
	nc := k.conn.Load()
	if nc == nil {
		return
	}
	if key, err := nats.NkeyOptionFromSeed(k.path); err == nil { // if the file is unreadable, the server refuses the old key
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
