package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/micro"
)

// Service is what others can ask of this process: a NATS micro service, so that `nats micro ls`, info and stats
// show it.
type Service struct {
	Name        string // [A-Za-z0-9_-]+
	Version     string // semantic: 1.2.3
	Description string
	Metadata    map[string]string // what its info shows beside that
	Endpoints   []Endpoint
}

// Endpoint is one subject of a service.
type Endpoint struct {
	Name    string // [A-Za-z0-9_-]+
	Subject string // may hold wildcards
	Queue   string // of its members each request reaches one. "" = the endpoint's name
	// Handle answers with Respond, as often as the asker expects. Calls run at the same time, each on its own goroutine.
	Handle func(Msg)
}

// Serve answers requests until stop, which also waits for the calls that run. When ctx ends, no new request is taken;
// stop still waits for those that run.
func (c *Conn) Serve(ctx context.Context, s Service) (stop func(), err error) {
	service, err := micro.AddService(c.nc, micro.Config{Name: s.Name, Version: s.Version, Description: s.Description, Metadata: s.Metadata})
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", s.Name, sendError(err))
	}
	halt := sync.OnceFunc(func() {
		if err := service.Stop(); err != nil && !c.nc.IsClosed() {
			c.log.Warn("a service did not stop cleanly", "service", s.Name, "err", err)
		}
	})
	var calls crowd
	for _, e := range s.Endpoints {
		if err := service.AddEndpoint(e.Name, calls.handler(e), micro.WithEndpointSubject(e.Subject), micro.WithEndpointQueueGroup(cmp.Or(e.Queue, e.Name))); err != nil {
			halt()
			return nil, fmt.Errorf("serve %s at %s: %w", s.Name, e.Subject, sendError(err))
		}
	}
	// The server knows of the endpoints when Serve returns, so that whoever hears of this service can ask it.
	if err := c.Flush(ctx); err != nil {
		halt()
		return nil, fmt.Errorf("serve %s: %w", s.Name, err)
	}
	release := context.AfterFunc(ctx, halt)
	return func() {
		release()
		halt()
		calls.close()
	}, nil
}

// Services asks all services of a name that can be reached what they are, and takes the answers that come before ctx ends.
func (c *Conn) Services(ctx context.Context, name string) (all []Service, err error) {
	subject, err := micro.ControlSubject(micro.InfoVerb, name, "")
	if err != nil {
		return nil, fmt.Errorf("ask the services %s: %w", name, err)
	}
	err = c.Stream(ctx, subject, nil, nil, func(m Msg) bool {
		var info micro.Info
		if json.Unmarshal(m.Data, &info) == nil { // else it is none of ours
			s := Service{Name: info.Name, Version: info.Version, Description: info.Description, Metadata: info.Metadata}
			for _, e := range info.Endpoints {
				s.Endpoints = append(s.Endpoints, Endpoint{Name: e.Name, Subject: e.Subject, Queue: e.QueueGroup})
			}
			all = append(all, s)
		}
		return true
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNoResponders) {
		err = nil
	}
	return all, err
}

// crowd is a number of calls that run, and a door that closes.
type crowd struct {
	mu     sync.Mutex
	closed bool // guarded by mu
	calls  sync.WaitGroup
}

// handler starts a call per request. A request that comes after close gets no answer, as if it had come after the
// subscription was gone.
func (c *crowd) handler(e Endpoint) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed {
			return
		}
		m := Msg{Subject: r.Subject(), Reply: r.Reply(), Header: Header(r.Headers()), Data: r.Data()}
		c.calls.Go(func() { e.Handle(m) })
	})
}

// close lets nobody in any more and waits until all are out.
func (c *crowd) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.calls.Wait()
}

// ServiceErrorHeader and ServiceErrorCodeHeader mark an answer as an error, in the way of NATS micro services.
const (
	ServiceErrorHeader     = micro.ErrorHeader
	ServiceErrorCodeHeader = micro.ErrorCodeHeader
)
