package httptool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/outbound"
)

const maxBody = 1 << 20 // bytes of a response

// Probe sends a request that finds out whether a run of a call was applied, and changes nothing.
// The body of a response with a status of 2xx is read by tool.ReadProbed. Any other status, a body
// over 1 MiB, a broken connection and a timeout mean that the outcome is unknown. It is safe for
// concurrent use.
type Probe struct {
	method, url string
	name        string // the address without its query, which may hold secrets
	header      http.Header
	timeout     time.Duration
	client      *http.Client
}

// NewProbe reads the variables and secrets that the headers name. The error names one that is
// missing.
func NewProbe(request schemas.CheckHTTP, folder secrets.Folder, timeout time.Duration) (*Probe, error) {
	address, err := url.Parse(request.URL)
	if err != nil {
		return nil, errors.New("http: the address cannot be read")
	}
	header := http.Header{"User-Agent": {"toolfleet"}}
	for _, h := range request.Headers {
		value, err := hidden(schemas.HTTPValue{Env: h.Env, Secret: h.Secret}, folder)
		if err != nil {
			return nil, fmt.Errorf("http: header %s: %w", h.Name, err)
		}
		header.Set(h.Name, value)
	}
	return &Probe{
		method: request.Method, url: request.URL, name: address.Scheme + "://" + address.Host + address.Path,
		header: header, timeout: timeout,
		client: &http.Client{
			// Probes are rare, so a connection that is kept open would be stale at the next one. A
			// probe may ask this machine: its address has no part that a model wrote.
			Transport:     outbound.Transport(outbound.Config{Loopback: true, Fresh: true}),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Probe sends one request.
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
		return tool.Probed{}, fmt.Errorf("probe %s: %w", p.name, err)
	}
	return probed, nil
}

func (p *Probe) send(ctx context.Context, call tool.Call) ([]byte, error) {
	request, err := p.request(ctx, call)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		var failed *url.Error // its text has the whole address, secrets included
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, fmt.Errorf("it answered with the status %s", response.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("read its answer: %w", err)
	}
	if len(answer) > maxBody {
		return nil, fmt.Errorf("its answer is longer than %d bytes", maxBody)
	}
	return answer, nil
}

func (p *Probe) request(ctx context.Context, call tool.Call) (*http.Request, error) {
	var body io.Reader
	if p.method == http.MethodPost {
		body = bytes.NewReader(call.Input)
	}
	request, err := http.NewRequestWithContext(ctx, p.method, p.url, body)
	if err != nil {
		return nil, err
	}
	request.Header = p.header.Clone()
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if err := setIdentity(request.Header, call); err != nil {
		return nil, err
	}
	tracing.Inject(ctx, request.Header)
	return request, nil
}
