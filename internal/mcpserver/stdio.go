package mcpserver

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Serve answers the client at the other end of a transport. When the client is gone or ctx
// ends, it returns nil. Before that it aborts the calls for which no client can ask again.
func (s *Server) Serve(ctx context.Context, t mcp.Transport, who Caller) error {
	gone, leave := context.WithCancel(ctx)
	defer leave()
	line := &queue{closed: make(chan struct{})}
	v := &visit{Caller: who, gone: gone, cancelled: context.Background(), turn: line.current}
	p := s.protocol(true)
	var watching sync.WaitGroup
	watching.Go(func() { watchTools(gone, v, p) })
	err := p.Run(context.WithValue(ctx, visitKey{}, v), ordered{t, line, leave})
	leave()
	watching.Wait()
	v.calls.Wait()
	if ctx.Err() != nil || isGone(err) {
		return nil
	}
	return err
}

// isGone reports whether err means that the client has left. The SDK may be answering a
// request at that time, and then writes to a pipe that has no reader.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, mcp.ErrConnectionClosed) ||
		errors.Is(err, io.ErrClosedPipe) || errors.Is(err, syscall.EPIPE)
}

// queue takes the calls of a connection one after another: it reads the next call when the
// last one is stored. So the fleet gets the calls in the order in which the client sent them.
type queue struct {
	mu     sync.Mutex
	now    *turn         // turn of the call that was taken last; nil: it is over; guarded by mu
	closed chan struct{} // closed with the connection
	once   sync.Once
}

// turn is the time of one call in the queue. It ends when the call is stored or is answered.
type turn struct {
	id   jsonrpc.ID
	over chan struct{}
}

// enter waits until the earlier calls are stored.
func (q *queue) enter(ctx context.Context, id jsonrpc.ID) error {
	for {
		q.mu.Lock()
		now := q.now
		if now == nil {
			q.now = &turn{id, make(chan struct{})}
			q.mu.Unlock()
			return nil
		}
		q.mu.Unlock()
		select {
		case <-now.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-q.closed:
			return io.EOF
		}
	}
}

// current returns the function that ends the present turn. The handler of a call must get this
// function before the next call is taken.
func (q *queue) current() (end func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now
	return func() { q.end(now) }
}

func (q *queue) end(t *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t != nil && q.now == t {
		close(t.over)
		q.now = nil
	}
}

// answered ends the turn of a call that has its answer.
func (q *queue) answered(id jsonrpc.ID) {
	q.mu.Lock()
	now := q.now
	q.mu.Unlock()
	if now != nil && now.id == id {
		q.end(now)
	}
}

// ordered is a transport that puts the calls of a connection in order.
type ordered struct {
	mcp.Transport
	line  *queue
	leave func() // called when the client is gone
}

// Connect implements [mcp.Transport].
func (t ordered) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := t.Transport.Connect(ctx)
	return &orderedConn{conn, t.line, t.leave}, err
}

type orderedConn struct {
	mcp.Connection
	line  *queue
	leave func()
}

// Read implements [mcp.Connection].
func (c *orderedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if err != nil {
		c.leave()
		return m, err
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() && r.Method == "tools/call" {
		if err := c.line.enter(ctx, r.ID); err != nil {
			c.leave()
			return nil, err
		}
	}
	return m, nil
}

// Write implements [mcp.Connection].
func (c *orderedConn) Write(ctx context.Context, m jsonrpc.Message) error {
	if r, ok := m.(*jsonrpc.Response); ok {
		c.line.answered(r.ID)
	}
	return c.Connection.Write(ctx, m)
}

// Close implements [mcp.Connection].
func (c *orderedConn) Close() error {
	c.leave()
	c.line.once.Do(func() { close(c.line.closed) })
	return c.Connection.Close()
}
