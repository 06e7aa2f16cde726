// Package httptool sends HTTP requests for tools. A [Tool] sends a request for each call. A
// [Probe] asks a service whether a run of a call was applied. An [Endpoint] is a fixed
// address for probes and hooks.
//
//	call -> fill (templates, secrets) -> send -> answer: an output, or an error for the model
//
// The host of a request comes from the tools file. An argument cannot leave its segment of
// the path, its parameter or its header. Package outbound makes sure that names, redirects
// and proxies do not lead to this machine or to the metadata service of a cloud.
//
// A request is sent again only if the tool may run again: see [Config.Repeatable]. If the
// tool changes something and its request breaks off, the outcome is unknown.
//
// The values of secrets appear only in requests. They are removed from every answer.
package httptool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/outbound"
)

// Config says what requests a tool sends.
type Config struct {
	Request schemas.HTTP
	Secrets secrets.Folder
	Timeout time.Duration // the tool's timeout. It limits a request without Request.Timeout
	// Harmless says that the tool changes nothing. If a request breaks off, it then does not
	// matter whether it was applied.
	Harmless bool
	// Repeatable says that the tool may run again with the same idempotency key.
	Repeatable bool
}

// codeUnreachable is the code of a request that got no answer.
const codeUnreachable messages.Code = "unreachable"

const (
	maxRedirects = 5
	// maxSends is how often, at most, one run sends its request when the service asks it to
	// wait.
	maxSends = 4
)

// Tool sends a request for each call. It is safe for concurrent use.
type Tool struct {
	cfg     Config
	form    *form
	client  *http.Client
	timeout time.Duration
	name    string // method and address without values, for errors
}

var (
	_ tool.Runner  = (*Tool)(nil)
	_ tool.Checker = (*Tool)(nil)
)

// New returns a tool. The error names a secret or variable that is missing.
func New(cfg Config) (*Tool, error) {
	form, err := newForm(cfg.Request, cfg.Secrets)
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	t := &Tool{cfg: cfg, form: form, timeout: cfg.Timeout, name: form.Method + " " + form.Origin + form.Path}
	if form.Timeout > 0 {
		t.timeout = form.Timeout
	}
	t.client = &http.Client{
		Transport:     outbound.Transport(outbound.Config{Loopback: form.Loopback}),
		CheckRedirect: t.redirect,
	}
	return t, nil
}

// redirect follows a redirect of a read to the same host and scheme. Any other redirect is
// returned as the answer.
func (t *Tool) redirect(next *http.Request, before []*http.Request) error {
	first := before[0]
	reads := first.Method == http.MethodGet || first.Method == http.MethodHead
	if !reads || next.URL.Host != first.URL.Host || next.URL.Scheme != first.URL.Scheme || len(before) > maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}

// Check refuses arguments that do not fit into the request.
func (t *Tool) Check(_ context.Context, call tool.Call) error {
	_, err := t.form.fill(call)
	var missing *secretError
	if errors.As(err, &missing) {
		return nil // Run reports this error
	}
	return err
}

// Run sends the request of a call. If the service says how long to wait and the tool may
// run again, Run waits and sends the request again, at most maxSends times in all.
func (t *Tool) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	if ctx.Err() != nil {
		return tool.Output{}, context.Cause(ctx)
	}
	filled, err := t.form.fill(call)
	if err != nil {
		return tool.Output{}, fmt.Errorf("%s: %w. No request was sent", t.name, err)
	}
	within := ctx
	if t.timeout > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, t.timeout)
		defer cancel()
	}
	for sends := 1; ; sends++ {
		answer, err := t.send(within, call, filled)
		if err != nil {
			return tool.Output{}, t.broken(ctx, err, filled)
		}
		again := t.cfg.Repeatable && sends < maxSends && answer.asksToWait()
		if again && t.wait(within, call, answer.retryAfter) {
			continue
		}
		return t.result(answer, filled)
	}
}

// wait waits until the service may be asked again. It returns false if ctx ends first.
func (t *Tool) wait(ctx context.Context, call tool.Call, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	if call.Progress != nil {
		call.Progress(messages.Progress{Text: fmt.Sprintf("the service asks to wait for %v", d)})
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send sends one request and reads its answer.
func (t *Tool) send(ctx context.Context, call tool.Call, filled *filled) (*answer, error) {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := t.form.request(ctx, call, filled, t.cfg.Repeatable)
	if err != nil {
		return nil, &unsentError{err, false}
	}
	response, err := t.client.Do(request)
	switch {
	case err != nil && !connected.Load():
		return nil, &unsentError{plain(err), true}
	case err != nil:
		return nil, plain(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(t.form.MaxResponse)+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return newAnswer(response, body, t.form.MaxResponse), nil
}

// unsentError is an error from before a connection was made, so nothing was sent.
type unsentError struct {
	error
	retryable bool
}

func (e *unsentError) Unwrap() error { return e.error }

// plain removes the address of the request from an error, because the address contains
// values.
func plain(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// broken returns the error of a request that got no answer.
func (t *Tool) broken(ctx context.Context, err error, filled *filled) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var unsent *unsentError
	var refused *outbound.RefusedError
	text := secrets.RedactText(err.Error(), filled.secrets)
	switch {
	case errors.As(err, &unsent):
		retryable := unsent.retryable && !errors.As(err, &refused)
		return &messages.Error{Code: codeUnreachable, Message: t.name + ": " + text + ". No request was sent.", Retryable: retryable}
	case errors.Is(err, context.DeadlineExceeded):
		return &messages.Error{Code: messages.CodeTimeout, Message: fmt.Sprintf("%s: it did not answer in %v.", t.name, t.timeout), Retryable: true}
	case t.cfg.Harmless:
		return &messages.Error{Code: codeUnreachable, Message: t.name + ": " + text + ".", Retryable: true}
	}
	return tool.Unknown(t.name, "the request broke off: "+text)
}
