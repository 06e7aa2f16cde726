package mcptool

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// posted is the HTTP status with which a service answered the request of a call. The SDK gives the
// same error for a request that was refused and for one whose answer was lost.
type posted struct{ first atomic.Int64 } // 0: no answer, or the server is a program

type postedKey struct{}

func withPosted(ctx context.Context, p *posted) context.Context {
	return context.WithValue(ctx, postedKey{}, p)
}

func (p *posted) status() int { return int(p.first.Load()) }

// rejectedByTransport is the code of the SDK's errors about HTTP. No server has sent them.
const rejectedByTransport = -32005

// refused reports whether an error is the server's own answer: it says what came of the call.
func (p *posted) refused(err error) bool {
	var said *jsonrpc.Error
	if !errors.As(err, &said) {
		return false
	}
	busy := p.status() == http.StatusTooManyRequests || p.status() == http.StatusServiceUnavailable
	return said.Code != rejectedByTransport || busy
}
