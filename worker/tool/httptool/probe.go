// Package httptool speaks HTTP for tools: a [Probe] asks a service whether a run of a call was applied.
//
// The address is fixed, and nothing leads away from it: redirects are not followed, and a proxy that the
// environment names is not used. A call is told of in headers, with the trace it belongs to, and with POST its input is the body.
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
	maxBody    = 1 << 20 // of an answer
	maxHeaders = 64 << 10
)

// Probe sends a request that finds out whether a run of a call was applied, and changes nothing. The body
// of an answer with a status of 2xx is read as tool.ReadProbed says. Any other status, a body over 1 MiB, a
// connection that breaks and an end of its time mean that nobody knows. It is safe for concurrent use.
type Probe struct {
	method, url string
	name        string // the address without its query, which may be nobody else's business
	header      http.Header
	timeout     time.Duration
	client      *http.Client
}

// NewProbe reads the variables that the headers name. One that is not set is an error that names it.
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
			return nil, fmt.Errorf("http: header %s: the environment variable %s holds what no header can carry", h.Name, h.Env)
		}
		header.Set(h.Name, value)
	}
	return &Probe{
		method: request.Method, url: request.URL, name: address.Scheme + "://" + address.Host + address.Path,
		header: header, timeout: timeout,
		client: &http.Client{
			// A probe is rare: a connection that is kept would mostly be a stale one.
			Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeaders},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Probe asks once.
func (p *Probe) Probe(ctx context.Context, call tool.Call) (tool.Probed, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("it did not answer in %v", p.timeout))
	defer cancel()
	answer, err := p.ask(ctx, call)
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

func (p *Probe) ask(ctx context.Context, call tool.Call) ([]byte, error) {
	request, err := p.request(ctx, call)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		var failed *url.Error // names the whole address again
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
		if !fits(value) { // a changed id would name something else
			return nil, fmt.Errorf("%s holds what no header can carry; nothing was asked", name)
		}
		request.Header.Set(name, value)
	}
	tracing.Inject(ctx, request.Header)
	return request, nil
}

// fits reports whether a header brings the value over as it is.
func fits(value string) bool {
	return strings.TrimSpace(value) == value && !strings.ContainsFunc(value, unicode.IsControl)
}
