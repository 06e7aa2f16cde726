// Package httphook runs hooks that are services. Each run of a hook is one POST with the request
// of package hookjson. A response with status 2xx is the hook's answer. If its body is empty,
// the answer changes nothing.
//
// In all other cases the hook could not run: any other status, including redirects; an
// answer that is not a JSON object, is longer than 4 MiB, or breaks off; a connection that
// fails or that package outbound refuses; a secret that is gone. The request has to end
// within the budget of the hook.
package httphook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/hook/hookjson"
	"github.com/toolfleet/toolfleet/worker/tool/httptool"
	"github.com/toolfleet/toolfleet/worker/tool/outbound"
)

// Config says what to ask.
type Config struct {
	Name    string // the name of the hook
	Request schemas.HookHTTP
	Secrets secrets.Folder
	Logger  *slog.Logger // nil: silent
}

type service struct {
	endpoint *httptool.Endpoint
	log      *slog.Logger
}

// New returns the target. The error names a secret or variable that is missing.
func New(cfg Config) (hookjson.Target, error) {
	endpoint, err := httptool.NewEndpoint(httptool.EndpointConfig{
		Method: http.MethodPost, URL: cfg.Request.URL, Headers: cfg.Request.Headers, Secrets: cfg.Secrets,
		MaxAnswer: hookjson.MaxAnswer, Outbound: outbound.Config{Loopback: cfg.Request.Loopback},
	})
	if err != nil {
		return nil, fmt.Errorf("hook %.80q: %w", cfg.Name, err)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &service{endpoint, log.With("hook", cfg.Name)}, nil
}

// Name returns the address without its query.
func (s *service) Name() string { return s.endpoint.Name() }

// Ask sends the request of a hook to the service, and returns the service's answer.
func (s *service) Ask(ctx context.Context, q hookjson.Request) (hookjson.Answer, error) {
	body, err := rawjson.Marshal(q)
	if err != nil {
		return hookjson.Answer{}, err
	}
	// The client sends a request again, after a kept connection turned out to be closed, only
	// if the request has this header. A header without values is not sent. A second send is
	// safe, because a hook may be asked twice.
	again := http.Header{"Idempotency-Key": nil}
	raw, err := s.endpoint.Send(ctx, again, body)
	var unusable *httptool.AnswerError
	switch {
	case err != nil && ctx.Err() != nil:
		return hookjson.Answer{}, context.Cause(ctx)
	case errors.As(err, &unusable):
		return hookjson.Answer{}, hookjson.Invalid(err)
	case err != nil:
		return hookjson.Answer{}, &hook.Fault{Cause: hook.Unreachable, Err: err}
	}
	a, err := q.Read(raw)
	hookjson.LogQuote(q.Logger(ctx, s.log), err)
	return a, err
}
