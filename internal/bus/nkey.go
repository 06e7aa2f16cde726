package bus

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// nkeyFile is the file of the key that a connection has. It is read at every connect, so another key
// in the file holds from the next one on. The client itself reads only the secret half again; the
// certificates and credentials it reads at every connect as a whole.
type nkeyFile struct {
	path string
	conn atomic.Pointer[nats.Conn] // nil until the first connect has succeeded
	in   interface{ InProcessConn() (net.Conn, error) }
	dial net.Dialer
}

// dialTimeout bounds one try to connect, as the client's own dialer does.
const dialTimeout = 2 * time.Second

// option returns the option of the client that has the key, or why the file holds none.
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

// read takes the key that the file holds now. The client calls it through Dial and InProcessConn with
// its lock held, before it says who it is, so nobody else reads its options meanwhile.
func (k *nkeyFile) read() {
	nc := k.conn.Load()
	if nc == nil {
		return
	}
	if key, err := nats.NkeyOptionFromSeed(k.path); err == nil { // else the server refuses the old one
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
