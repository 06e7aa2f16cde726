// Package httptool speaks HTTP for tools: a [Probe] asks a service whether a run of a call was
// applied.
//
// Requests go only to the configured address: redirects are not followed, and a proxy that the
// environment names is not used. Headers carry the ids of the call and its trace context. A POST
// has the input of the call as its body.
package httptool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

const (
	maxBody    = 1 << 20 // bytes of a response
	maxHeaders = 64 << 10
)

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

// NewProbe reads the environment variables that the headers name. The error names a variable that
// is not set.
func NewProbe(request schemas.CheckHTTP, timeout time.Duration) (*Probe, error) {
	address, err := url.Parse(request.URL)
	if err != nil {
		return nil, errors.New("http: the address cannot be read")
	}
	header := http.Header{"User-Agent": {"toolfleet"}}
	for _, h := range request.Headers {
		value := os.Getenv(h.Env)
		switch {
		case value == "":
			return nil, fmt.Errorf("http: header %s: the environment variable %s is not set", h.Name, h.Env)
		case !fits(value):
			return nil, fmt.Errorf("http: header %s: the environment variable %s has a value that no header can carry", h.Name, h.Env)
		}
		header.Set(h.Name, value)
	}
	return &Probe{
		method: request.Method, url: request.URL, name: address.Scheme + "://" + address.Host + address.Path,
		header: header, timeout: timeout,
		client: &http.Client{
			// Probes are rare, so a connection that is kept open would be stale at the next one.
			Transport: &http.Transport{
				DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeaders,
			},
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
	for name, value := range map[string]string{
		"Toolfleet-Session":         string(call.Session),
		"Toolfleet-Batch":           string(call.Batch),
		"Toolfleet-Call-Id":         string(call.ID),
		"Toolfleet-Index":           strconv.Itoa(call.Index),
		"Toolfleet-Attempt":         strconv.Itoa(call.Attempt),
		"Toolfleet-Idempotency-Key": call.IdempotencyKey,
		"Toolfleet-Fence":           strconv.FormatUint(call.Fence, 10),
	} {
		// A header cannot carry the id unchanged, and a changed id may name another call.
		if !fits(value) {
			return nil, fmt.Errorf("%s has a value that no header can carry; no request was sent", name)
		}
		request.Header.Set(name, value)
	}
	tracing.Inject(ctx, request.Header)
	return request, nil
}

// fits reports whether a header can carry the value unchanged.
func fits(value string) bool {
	return strings.TrimSpace(value) == value && !strings.ContainsFunc(value, unicode.IsControl)
}
