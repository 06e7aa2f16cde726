package httptool

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/outbound"
)

const maxBody = 1 << 20 // bytes of a response

// Probe sends a request that finds out whether a run of a call was applied. It changes
// nothing. If the status is 2xx, tool.ReadProbed reads the body. Any other status, a body
// over 1 MiB, a broken connection or a timeout means that the outcome is unknown. Safe for
// concurrent use.
type Probe struct {
	endpoint *Endpoint
	posts    bool // the request has the input of the call as its body
	timeout  time.Duration
}

// NewProbe returns a probe. The error names a variable or secret that is missing.
func NewProbe(request schemas.CheckHTTP, folder secrets.Folder, timeout time.Duration) (*Probe, error) {
	var headers []schemas.HTTPValue
	for _, h := range request.Headers {
		headers = append(headers, schemas.HTTPValue{Name: h.Name, Env: h.Env, Secret: h.Secret})
	}
	endpoint, err := NewEndpoint(EndpointConfig{
		Method: request.Method, URL: request.URL, Headers: headers, Secrets: folder, MaxAnswer: maxBody,
		// Probes are rare. A connection that was kept open would be stale at the next probe. A
		// probe may go to this machine, because no part of its address comes from a model.
		Outbound: outbound.Config{Loopback: true, Fresh: true},
	})
	if err != nil {
		return nil, err
	}
	return &Probe{endpoint, request.Method == http.MethodPost, timeout}, nil
}

// Probe asks the service, with one request, whether an earlier run of the call was applied.
func (p *Probe) Probe(ctx context.Context, call tool.Call) (tool.Probed, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("it did not answer in %v", p.timeout))
	defer cancel()
	answer, err := p.send(ctx, call)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	var probed tool.Probed
	if err == nil {
		probed, err = tool.ReadProbed(answer)
	}
	if err != nil {
		return tool.Probed{}, fmt.Errorf("probe %s: %w", p.endpoint.Name(), err)
	}
	return probed, nil
}

func (p *Probe) send(ctx context.Context, call tool.Call) ([]byte, error) {
	header := http.Header{}
	if err := setIdentity(header, call); err != nil {
		return nil, err
	}
	var body []byte
	if p.posts {
		body = call.Input
	}
	return p.endpoint.Send(ctx, header, body)
}
