package mcptool

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// posted holds the HTTP status of the answer to a call's request. The SDK returns the same
// error for a refused request and for a lost answer. The status tells the two apart.
type posted struct{ first atomic.Int64 } // 0: no answer, or the server is a program

type postedKey struct{}

func withPosted(ctx context.Context, p *posted) context.Context {
	return context.WithValue(ctx, postedKey{}, p)
}

func (p *posted) status() int { return int(p.first.Load()) }

// rejectedByTransport is the code of the SDK's own errors about HTTP. Servers do not send it.
const rejectedByTransport = -32005

// refused reports whether an error is the server's own answer. The outcome of the call is then
// known.
func (p *posted) refused(err error) bool {
	var said *jsonrpc.Error
	if !errors.As(err, &said) {
		return false
	}
	busy := p.status() == http.StatusTooManyRequests || p.status() == http.StatusServiceUnavailable
	return said.Code != rejectedByTransport || busy
}
