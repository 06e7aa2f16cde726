// Package service answers requests of other processes as a NATS micro service. It also finds
// such services.
package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/micro"

	"github.com/toolfleet/toolfleet/internal/bus"
)

// Service describes what other processes can request of this process. It is a NATS micro
// service, so the info and stats of `nats micro` show it.
type Service struct {
	Name        string // [A-Za-z0-9_-]+
	Version     string // semantic: 1.2.3
	Description string
	Metadata    map[string]string // shown in the service's info
	Endpoints   []Endpoint
}

// Endpoint is one subject of a service.
type Endpoint struct {
	Name    string // [A-Za-z0-9_-]+
	Subject string // may have wildcards
	Queue   string // each request goes to one member of the queue. "" = the endpoint's name
	// Handle answers with Respond, as often as the requester expects. Each request has its own
	// goroutine.
	Handle func(bus.Msg)
}

// Serve answers requests until stop is called. stop waits for requests that are being
// answered. When ctx ends, Serve accepts no new request, but the caller must still call stop.
func Serve(ctx context.Context, c *bus.Conn, s Service) (stop func(), err error) {
	service, err := micro.AddService(c.JetStream().Conn(), micro.Config{Name: s.Name, Version: s.Version, Description: s.Description, Metadata: s.Metadata})
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", s.Name, bus.ClientError(err))
	}
	halt := sync.OnceFunc(func() {
		if err := service.Stop(); err != nil && !c.JetStream().Conn().IsClosed() {
			c.Logger().Warn("a service did not stop cleanly", "service", s.Name, "err", err)
		}
	})
	var calls crowd
	for _, e := range s.Endpoints {
		if err := service.AddEndpoint(e.Name, calls.handler(e), micro.WithEndpointSubject(e.Subject), micro.WithEndpointQueueGroup(cmp.Or(e.Queue, e.Name))); err != nil {
			halt()
			return nil, fmt.Errorf("serve %s at %s: %w", s.Name, e.Subject, bus.ClientError(err))
		}
	}
	// When Serve returns, the server must know the endpoints: a process that learns of this
	// service may send requests at once.
	if err := c.Flush(ctx); err != nil {
		halt()
		return nil, fmt.Errorf("serve %s: %w", s.Name, err)
	}
	release := context.AfterFunc(ctx, halt)
	return func() {
		// Refuse new requests first, then wait for the running ones.
		release()
		halt()
		calls.close()
	}, nil
}

// Find asks all reachable services with this name to describe themselves. It collects the
// answers that arrive before ctx ends.
func Find(ctx context.Context, c *bus.Conn, name string) (all []Service, err error) {
	subject, err := micro.ControlSubject(micro.InfoVerb, name, "")
	if err != nil {
		return nil, fmt.Errorf("ask the services %s: %w", name, err)
	}
	err = c.Stream(ctx, subject, nil, nil, func(m bus.Msg) bool {
		var info micro.Info
		if json.Unmarshal(m.Data, &info) == nil { // any other service is not of toolfleet
			s := Service{Name: info.Name, Version: info.Version, Description: info.Description, Metadata: info.Metadata}
			for _, e := range info.Endpoints {
				s.Endpoints = append(s.Endpoints, Endpoint{Name: e.Name, Subject: e.Subject, Queue: e.QueueGroup})
			}
			all = append(all, s)
		}
		return true
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, bus.ErrNoResponders) {
		err = nil
	}
	return all, err
}

// crowd counts the running calls. When it is closed, it refuses new calls.
type crowd struct {
	mu     sync.Mutex
	closed bool // guarded by mu
	calls  sync.WaitGroup
}

// handler runs Handle on a goroutine for each request. A request that comes after close gets
// no answer, as it would if the subscription had ended.
func (c *crowd) handler(e Endpoint) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed {
			return
		}
		m := bus.Msg{Subject: r.Subject(), Reply: r.Reply(), Header: bus.Header(r.Headers()), Data: r.Data()}
		c.calls.Go(func() { e.Handle(m) })
	})
}

// close refuses further calls and waits for the running ones.
func (c *crowd) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.calls.Wait()
}
