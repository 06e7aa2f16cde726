package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

const (
	maxDetails       = 64 << 10 // bytes of JSON that a tool may add to its error
	maxOutputDetails = 16 << 10 // bytes of JSON that a tool may add to its output, for people
)

// toolReturn is what tool code returned.
type toolReturn struct {
	output   tool.Output
	err      error
	panicked bool // the code panicked, so there is no output
}

// errLeftBehind is the error of tool code that did not return in time.
var errLeftBehind = errors.New("left behind")

// execute is the execute phase: it runs the tool. The run must end within the tool's timeout
// and within the batch's time.
func (c *callRun) execute(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.tool.Timeout())
	defer cancel()
	own := c.toolCall()
	reports := &reports{emit: c.emit}
	own.Progress = reports.add
	var lacks atomic.Pointer[[]string] // the tool's code may be left behind, so access is atomic
	own.OnSandboxGaps = func(properties []string) { lacks.Store(&properties) }
	c.started = true
	a := c.await(ctx, Execute, func() (tool.Output, error) { return c.tool.Runner.Run(ctx, own) })
	reports.end()
	if properties := lacks.Load(); properties != nil {
		c.result.SandboxLacks = *properties
	}
	switch {
	case a.panicked:
		return c.broken()
	case a.err != nil && ctx.Err() != nil:
		c.started = !errors.Is(a.err, tool.ErrNotStarted)
		return c.stopped(ctx, a.err)
	case a.err != nil:
		return c.toolFailure(a.err)
	}
	c.ended = true
	outcome, err := c.outcome(a.output)
	if err != nil {
		return err
	}
	c.result.Status = messages.StatusOK
	if outcome.IsError {
		c.result.Status = messages.StatusError
	}
	c.result.Outcome = outcome
	return nil
}

// await runs tool code on a goroutine. If the code still runs KillGrace after ctx has
// ended, await returns without it. The code thus cannot hold a slot of the worker for ever.
func (c *callRun) await(ctx context.Context, phase string, f func() (tool.Output, error)) toolReturn {
	answers := make(chan toolReturn, 1)
	go func() {
		a := toolReturn{panicked: true} // stays if f ends the goroutine with runtime.Goexit
		defer func() {
			if v := recover(); v != nil {
				c.logPanic(phase, v)
			}
			answers <- a
		}()
		output, err := f()
		a = toolReturn{output: output, err: err}
	}()
	select {
	case a := <-answers:
		return a
	case <-ctx.Done():
	}
	grace := time.NewTimer(c.cfg.KillGrace)
	defer grace.Stop()
	select {
	case a := <-answers:
		return a
	case <-grace.C:
		c.log().Error("the tool ignores its cancellation and still runs; the worker goes on without it",
			"phase", phase, "grace", c.cfg.KillGrace)
		c.cfg.LeftBehind(c.job.Tool)
		return toolReturn{err: errLeftBehind}
	}
}

// toolFailure returns a failure for an error of the tool. The tool says whether a retry may
// help. The failure repeats that to the model only if a second run does no harm.
func (c *callRun) toolFailure(err error) *failure {
	toolErr := messages.Error{Code: messages.CodeToolError}
	var own *messages.Error
	switch isOwn := errors.As(err, &own); {
	case isOwn && own != nil:
		toolErr = *own
	case !isOwn:
		toolErr.Message = err.Error()
	}
	if toolErr.Code == "" {
		toolErr.Code = messages.CodeToolError
	}
	toolErr.Message = c.readable(toolErr.Message)
	toolErr.Details = c.details(toolErr.Details)
	wantsAnother := toolErr.Retryable
	toolErr.Retryable = toolErr.Retryable && c.repeatable()
	if toolErr.Code == messages.CodeTimeout && !c.harmless() { // the tool reports a timeout of its own
		f := c.unknown("it did not end in its time and was stopped")
		f.err.Retryable = c.repeatable()
		f.err.Message += "\n" + toolErr.Message
		return f
	}
	status := messages.StatusError
	if toolErr.Code == messages.CodeOutcomeUnknown {
		status = messages.StatusOutcomeUnknown
	}
	return &failure{status: status, err: &toolErr, ask: wantsAnother && !toolErr.Retryable}
}

// readable makes the text of an error valid UTF-8 and cuts it to the limit of the tool's output.
func (c *callRun) readable(text string) string {
	limit, keep := c.tool.MaxOutput, c.tool.Truncate
	if limit == 0 {
		limit, keep = schemas.DefaultMaxOutput, schemas.TruncateTail
	}
	text, _ = cut(strings.ToValidUTF8(text, "\uFFFD"), limit, keep)
	return text
}

// details returns, as JSON, the details that a tool added to its error. It returns nil if
// they cannot be encoded or have more than maxDetails bytes.
func (c *callRun) details(v any) (details any) {
	if v == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			c.logPanic(Execute, p)
			details = nil
		}
	}()
	raw, err := rawjson.Marshal(v)
	if err != nil || len(raw) > maxDetails {
		c.log().Warn("the details of the tool's error are too large or not JSON and are dropped",
			"bytes", len(raw), "unwritable", err != nil)
		return nil
	}
	return json.RawMessage(raw)
}

// outcome turns the tool's output into one JSON value or a list of blocks, of at most
// MaxOutput bytes. A value that rawjson.Check refuses becomes text.
func (c *callRun) outcome(o tool.Output) (messages.Outcome, error) {
	if size := sizeOf(o.Value, o.Content); size > c.cfg.MaxOutput {
		return messages.Outcome{}, fail(messages.StatusError, messages.CodeTooLarge,
			"%s has run, but it gave %d bytes and the limit is %d, so its output is lost.%s", c.job.Tool, size, c.cfg.MaxOutput, c.hint())
	}
	outcome := messages.Outcome{Details: c.outputDetails(o.Details)}
	switch {
	case o.IsError && len(o.Content) == 0:
		return messages.Outcome{}, c.toolFailure(errors.New(textOf(o.Value)))
	case len(o.Content) > 0 && len(o.Value) == 0:
		outcome.Content, outcome.IsError = validText(o.Content), o.IsError
	case len(o.Value) == 0:
		outcome.Output = rawjson.Quote("")
	default:
		outcome.Output = value(o.Value)
	}
	return outcome, nil
}

// outputDetails returns the details for people that a tool added to its output. It returns
// nil if they are too large or not JSON.
func (c *callRun) outputDetails(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) > maxOutputDetails || rawjson.Check(raw) != nil {
		c.log().Warn("the details of an output are too large or not JSON and are dropped", "bytes", len(raw), "limit", maxOutputDetails)
		return nil
	}
	return raw
}

// sizeOf returns the number of bytes of the values, texts and data of an output, without
// the JSON around them.
func sizeOf(value json.RawMessage, content []messages.Block) int {
	size := len(value)
	for _, b := range content {
		size += len(b.Text) + len(b.Data)
		if b.Resource != nil {
			size += len(b.Resource.Text) + len(b.Resource.Blob)
		}
	}
	return size
}

func (c *callRun) hint() string {
	if c.tool.Kind == messages.KindWrite {
		return " What it does is done: do not repeat it."
	}
	return " Ask for less."
}

func value(raw json.RawMessage) json.RawMessage {
	// For a string these checks are enough: rawjson.Check does no others.
	if raw[0] == '"' && utf8.Valid(raw) && json.Valid(raw) {
		return raw
	}
	if rawjson.Check(raw) == nil {
		return raw
	}
	return rawjson.Quote(string(raw))
}

// textOf returns the text of a JSON string, and the raw JSON of any other value.
func textOf(raw json.RawMessage) string {
	if text, ok := (messages.Outcome{Output: raw}).OutputString(); ok {
		return text
	}
	return string(raw)
}

func validText(blocks []messages.Block) []messages.Block {
	blocks = cloneTexts(blocks)
	for _, text := range textsOf(blocks) {
		*text = strings.ToValidUTF8(*text, "\uFFFD")
	}
	return blocks
}
