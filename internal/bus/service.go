package bus

import (
	"context"
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

// Serve answers requests until stop, which also waits for the calls that run, or until ctx ends. Then no new request
// is taken; stop still waits for those that run.
func (c *Conn) Serve(ctx context.Context, s Service) (stop func(), err error) {
	service, err := micro.AddService(c.nc, micro.Config{Name: s.Name, Version: s.Version, Description: s.Description})
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", s.Name, sendError(err))
	}
	var calls sync.WaitGroup
	for _, e := range s.Endpoints {
		queue := e.Queue
		if queue == "" {
			queue = e.Name
		}
		handler := micro.HandlerFunc(func(r micro.Request) {
			m := Msg{Subject: r.Subject(), Reply: r.Reply(), Header: Header(r.Headers()), Data: r.Data()}
			calls.Go(func() { e.Handle(m) })
		})
		if err := service.AddEndpoint(e.Name, handler, micro.WithEndpointSubject(e.Subject), micro.WithEndpointQueueGroup(queue)); err != nil {
			_ = service.Stop()
			return nil, fmt.Errorf("serve %s at %s: %w", s.Name, e.Subject, sendError(err))
		}
	}
	halt := sync.OnceFunc(func() {
		if err := service.Stop(); err != nil && !c.nc.IsClosed() {
			c.log.Warn("a service did not stop cleanly", "service", s.Name, "error", err)
		}
	})
	release := context.AfterFunc(ctx, halt)
	return func() {
		release()
		halt()
		calls.Wait()
	}, nil
}

// ServiceErrorHeader and ServiceErrorCodeHeader mark an answer as an error, in the way of NATS micro services.
const (
	ServiceErrorHeader     = micro.ErrorHeader
	ServiceErrorCodeHeader = micro.ErrorCodeHeader
)
