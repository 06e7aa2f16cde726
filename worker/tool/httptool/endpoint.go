package httptool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool/outbound"
)

// EndpointConfig describes an [Endpoint].
type EndpointConfig struct {
	Method, URL string
	Headers     []schemas.HTTPValue // their values are plain text, secrets or variables
	Secrets     secrets.Folder
	MaxAnswer   int // bytes of an answer
	Outbound    outbound.Config
}

// Endpoint is an address of which no part comes from a model. A request goes to this
// address only: redirects are not followed and no proxy is used. Package outbound checks
// each connection. Safe for concurrent use.
type Endpoint struct {
	cfg    EndpointConfig
	name   string
	client *http.Client
}

// NewEndpoint returns an endpoint. The error names a secret or variable that is missing.
func NewEndpoint(cfg EndpointConfig) (*Endpoint, error) {
	address, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("http: the address cannot be read")
	}
	e := &Endpoint{cfg: cfg, name: address.Scheme + "://" + address.Host + address.Path}
	e.client = &http.Client{
		Transport:     outbound.Transport(cfg.Outbound),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	_, _, err = e.header()
	return e, err
}

// Name returns the address without its query, which may hold secrets.
func (e *Endpoint) Name() string { return e.name }

// AnswerError says that the service answered and the answer cannot be used: its status is
// not 2xx, it is too long, or it breaks off.
type AnswerError struct{ error }

func (e *AnswerError) Unwrap() error { return e.error }

// Send sends a request with these headers and those of the config. It returns the body of an
// answer with a 2xx status, with the values of secrets removed. Secrets are read for each
// request. With a nil body, the request has no body. Errors quote neither the request nor the
// answer, except for the status.
func (e *Endpoint) Send(ctx context.Context, header http.Header, body []byte) ([]byte, error) {
	own, hidden, err := e.header()
	if err != nil {
		return nil, err
	}
	var sent io.Reader
	if body != nil {
		sent = bytes.NewReader(body)
		own.Set("Content-Type", "application/json")
	}
	request, err := http.NewRequestWithContext(ctx, e.cfg.Method, e.cfg.URL, sent)
	if err != nil {
		return nil, plain(err)
	}
	maps.Copy(own, header)
	request.Header = own
	tracing.Inject(ctx, request.Header)
	response, err := e.client.Do(request)
	if err != nil {
		return nil, plain(err)
	}
	defer response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, &AnswerError{fmt.Errorf("it answered with the status %s",
			strings.TrimSpace(fmt.Sprintf("%d %s", response.StatusCode, http.StatusText(response.StatusCode))))}
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, int64(e.cfg.MaxAnswer)+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, err
	case err != nil:
		return nil, &AnswerError{fmt.Errorf("read its answer: %w", err)}
	case len(answer) > e.cfg.MaxAnswer:
		return nil, &AnswerError{fmt.Errorf("its answer is longer than %d bytes", e.cfg.MaxAnswer)}
	}
	return secrets.Redact(answer, hidden), nil
}

// header returns the headers of the config. hidden are values that must not appear in any
// text.
func (e *Endpoint) header() (header http.Header, hidden []string, err error) {
	header = http.Header{"User-Agent": {"toolfleet"}}
	for _, h := range e.cfg.Headers {
		text := h.Template
		if h.Secret != "" || h.Env != "" {
			if text, err = hiddenValue(h, e.cfg.Secrets); err != nil {
				return nil, nil, fmt.Errorf("http: header %s: %w", h.Name, err)
			}
			hidden = append(hidden, strings.TrimPrefix(text, h.Prefix))
		}
		header.Set(h.Name, text)
	}
	return header, hidden, nil
}
