package httptool

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// maxWords limits how much of an answer an error quotes, in bytes.
const maxWords = 4000

// answer is what a service answered.
type answer struct {
	status     int
	retryAfter time.Duration
	tooLong    bool
	body       []byte
}

func newAnswer(response *http.Response, body []byte, limit int) *answer {
	a := &answer{status: response.StatusCode, body: body}
	if len(body) > limit {
		a.tooLong, a.body = true, body[:limit]
	}
	a.retryAfter = retryAfter(response.Header.Get("Retry-After"), time.Now())
	return a
}

// retryAfter reads a number of seconds or a date.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(text); err == nil {
		return max(0, date.Sub(now))
	}
	return 0
}

// busy reports whether the service says that a later request may succeed.
func (a *answer) busy() bool {
	return a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable
}

// asksToWait reports whether the service says how long to wait.
func (a *answer) asksToWait() bool { return a.busy() && a.retryAfter > 0 }

// result returns the output of an answer, or its error.
func (t *Tool) result(a *answer, filled *filled) (tool.Output, error) {
	a.body = secrets.Redact(a.body, filled.secrets)
	if !t.succeeded(a.status) {
		return tool.Output{}, t.failure(a)
	}
	if a.tooLong {
		return tool.Output{}, &messages.Error{Code: messages.CodeTooLarge, Message: fmt.Sprintf(
			"%s: it answered with the status %d and more than %d bytes, so the answer is lost.%s", t.name, a.status, t.form.MaxResponse, t.hint())}
	}
	if t.form.Output == "" {
		return tool.Printed(a.body), nil
	}
	value, err := pick(a.body, t.form.Output)
	if err != nil {
		return tool.Output{}, fmt.Errorf("%s: it answered with the status %d, but %w.%s", t.name, a.status, err, t.hint())
	}
	return tool.Output{Value: value}, nil
}

func (t *Tool) hint() string {
	if t.cfg.Harmless {
		return ""
	}
	return " What it does is done: do not repeat it."
}

func (t *Tool) succeeded(status int) bool {
	if len(t.form.Success) > 0 {
		return slices.Contains(t.form.Success, status)
	}
	return status >= 200 && status <= 299 && !slices.Contains(t.form.Failure, status)
}

// mayBeApplied reports whether a service may have applied a request although its status is
// not a success. A redirect often comes after the work is done. A proxy that has lost its
// service, or cannot understand the service's answer, does not know what happened to the
// request.
func mayBeApplied(status int) bool {
	switch {
	case status >= 300 && status <= 399, status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		return true
	}
	return status >= 520 && status <= 527 // Cloudflare's own statuses
}

// failure returns the error for a status that is not a success. Its code is http_<status>.
func (t *Tool) failure(a *answer) error {
	text := strings.TrimSpace(fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)))
	if words := a.words(); words != "" {
		text += ": " + words
	}
	if mayBeApplied(a.status) && !t.cfg.Harmless && !slices.Contains(t.form.Failure, a.status) {
		return tool.Unknown(t.name, "the answer was "+text)
	}
	failed := &messages.Error{
		Code: messages.Code("http_" + strconv.Itoa(a.status)), Message: t.name + ": " + text, Retryable: a.retryable(),
	}
	if a.retryAfter > 0 {
		failed.Details = map[string]any{"retry_after_ms": a.retryAfter.Milliseconds()}
	}
	return failed
}

// retryable reports whether a later request may succeed. The service may say so in its
// answer; otherwise the status decides.
func (a *answer) retryable() bool {
	var own struct{ Retryable *bool }
	if json.Unmarshal(a.body, &own) == nil && own.Retryable != nil {
		return *own.Retryable
	}
	switch a.status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	}
	return a.busy()
}

// words returns the service's text about a failure. It comes from the members that services
// use for such texts, or from the start of the answer.
func (a *answer) words() string {
	text := string(a.body)
	var own map[string]json.RawMessage
	if json.Unmarshal(a.body, &own) == nil {
		if inner := own["error"]; len(inner) > 0 && inner[0] == '{' {
			_ = json.Unmarshal(inner, &own) // inner members take precedence
		}
		for _, name := range []string{"detail", "message", "error_description", "error", "title"} {
			var found string
			if json.Unmarshal(own[name], &found) == nil && strings.TrimSpace(found) != "" {
				text = found
				break
			}
		}
	}
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "") + "..."
	}
	return text
}

// pick returns the value at a JSON pointer, byte for byte.
func pick(body []byte, pointer string) (json.RawMessage, error) {
	if err := rawjson.Check(body); err != nil {
		return nil, fmt.Errorf("the answer is no JSON that can be read (%w)", err)
	}
	value, ok := rawjson.At(body, pointer)
	if !ok {
		return nil, fmt.Errorf("the answer has nothing at %s", pointer)
	}
	return value, nil
}
