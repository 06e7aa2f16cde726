// Package pipeline takes a call through its six phases on the worker, in this order:
//
//	1 validate       the arguments against the tool's schema
//	2 semantic       the tool's own rules: paths, sizes, what a schema cannot say
//	3 pre-hooks      user code: may refuse, or change the input, which then goes through 1 and 2
//	                 again
//	4 permissions    the rules, on the input as it is now: it is frozen and hashed first. If a
//	                 person has to approve and has not yet, the run ends here with a question
//	5 execute        the tool itself, within its time
//	6 post-hooks     user code: sees every call that entered phase 1; may replace an output
//
// If a call fails before the execute phase, that failure is its result, and its tool never
// starts. Deny rules are also checked once before any hook runs. A call may have been planned
// to run beside others, although its frozen input must run alone. The permissions phase hands
// such a call back before any person is asked. Every other call asks the lane for its grant
// between the permissions phase and the execute phase. If the call needs a claim, the lane
// claims it before it gives the grant.
//
// A frozen input does not change, except that a person who is asked may replace it. A call
// may continue from a record, because people have answered or an attempt failed or was
// lost. Then its input and the answers of its hooks come from that record. All other checks
// are made again.
//
// A checkable tool can tell whether a run with an unknown outcome was applied. The pipeline
// asks the tool in three cases: before it runs a call again after a lost attempt, after a run
// that was stopped in the middle, and after a failure that may be temporary.
//
// Run returns a result for every end of a call, even after a panic. It returns an error
// instead only if another worker or a later attempt continues the call. The post-hooks then
// run in that attempt. A run that is cancelled with a *wire.Stop ends as aborted. It ends as
// outcome_unknown if a tool that changes things had started. If the run is cancelled for
// another reason (a lost lease, a worker that shuts down), Run returns that reason, unless the
// tool had started and may not run again.
//
// Package worker/lane does the queueing, leases, deliveries and retries.
package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas/safety"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The names of the phases, in durations, logs and metrics.
const (
	Validate    = "validate"
	Semantic    = "semantic"
	PreHooks    = "pre-hooks"
	Permissions = "permissions"
	Execute     = "execute"
	PostHooks   = "post-hooks"
)

var phases = []string{Validate, Semantic, PreHooks, Permissions, Execute, PostHooks}

// Pipeline runs calls of the registry's tools. It is safe for concurrent use.
type Pipeline struct {
	cfg      Config
	programs sync.Map // caches compiled rules: source to *expression.Program
}

// New checks the config and returns a pipeline. Registry is required, and no limit may be negative.
func New(cfg Config) (*Pipeline, error) {
	if cfg.Registry == nil {
		return nil, errors.New("pipeline: there is no registry of tools")
	}
	if cfg.MaxInput < 0 || cfg.MaxOutput < 0 || cfg.KillGrace < 0 {
		return nil, errors.New("pipeline: a limit is negative")
	}
	return &Pipeline{cfg: cfg.withDefaults()}, nil
}

// callRun is one call on its way through the phases. Only the goroutine of Run uses it.
type callRun struct {
	*Pipeline
	job    wire.Job
	prior  *wire.CallRecord // the record from which the call continues, or nil
	tool   tool.Registered
	input  json.RawMessage // the input after the pre-hooks; once frozen, it does not change
	frozen call.Frozen
	grant  call.Grant
	// idempotencyKey is the key for the tool's run; "" before the call is claimed.
	idempotencyKey string
	hooks          hook.Result       // the result of the pre-hooks
	ruling         permission.Ruling // of the permissions phase, or of a hook or rule that refused the call earlier
	// When an answered question has been checked, exactly one of the next two is set.
	agreement    *messages.Approval // the valid approval with which the call runs
	flaw         *messages.Refusal  // why the approval is not valid
	emit         func(messages.Event)
	started      bool // the tool was started
	ended        bool // the tool has returned, or a probe found that a lost attempt was applied
	phaseTimes   map[string]time.Duration
	current      string // the current phase; "" between two phases
	failed       string // the first phase that failed; "": none
	replacedHash string // hash of the tool's own output, if a hook has replaced the output
	result       messages.Result
	span         trace.Span
	traceID      string // "": no trace
}

// failure is the error with which a phase ends the call. It becomes the result of the call.
type failure struct {
	status messages.Status
	err    *messages.Error
	ask    bool // a probe should find out whether the run was applied; if not, it may be repeated
}

func (f *failure) Error() string { return string(f.status) + ": " + f.err.Message }

// Run takes a job through the phases. The lane completes the result with the worker and the
// time in the queue.
//
// prior is the record from which the job continues, or nil. If prior has a frozen input, the
// call runs with that input. Then the pre-hooks do not run again, unless a person has just
// edited the input. claim may be nil if the call runs without a claim. emit receives events
// and adds their ids. It must not block, and may be nil.
//
// Two errors are special: *call.HandBack for a call that was planned to run beside others
// and must run alone, and *call.Ask for a call that needs a person's approval.
func (p *Pipeline) Run(
	ctx context.Context, job wire.Job, prior *wire.CallRecord, claim call.Claim, emit func(messages.Event),
) (_ messages.Result, err error) {
	ctx, span := p.span(ctx, job)
	c := p.call(job, prior, emit)
	c.span, c.traceID = span, tracing.ID(ctx)
	defer func() { c.closeSpan(err) }()
	err = c.stopped(ctx, nil) // if the call is stopped already, no phase begins
	entered := err == nil
	if entered {
		err = c.phases(ctx, claim)
	}
	c.result.Permission = c.permission()
	c.countDecision()
	if err = c.settle(err); err != nil {
		return messages.Result{}, err
	}
	if entered {
		c.postHooks(ctx)
		c.noteEdit()
	}
	c.result.DurationMS = milliseconds(time.Since(c.result.Started))
	c.result.Trail = c.trail()
	for _, phase := range phases {
		if took, ok := c.phaseTimes[phase]; ok {
			p.cfg.Observe(phase, took)
		}
	}
	return c.result, nil
}

func (p *Pipeline) call(job wire.Job, prior *wire.CallRecord, emit func(messages.Event)) *callRun {
	if emit == nil {
		emit = func(messages.Event) {}
	}
	return &callRun{
		Pipeline: p, job: job, prior: prior, input: frozenInput(job, prior), emit: emit,
		phaseTimes: make(map[string]time.Duration, len(phases)),
		result: messages.Result{
			V: messages.Version, Index: job.Index, CallID: job.CallID, Tool: job.Tool, Started: time.Now(),
		},
	}
}

// log returns a logger for lines about this call. It makes the logger only when it is
// needed, because most calls log nothing.
func (c *callRun) log() *slog.Logger {
	log := c.cfg.Logger.With("tenant", c.job.Tenant, "session", c.job.Session, "batch", c.job.Batch,
		"call", cmp.Or(string(c.job.CallID), strconv.Itoa(c.job.Index)), "tool", c.job.Tool)
	if c.traceID != "" {
		log = log.With("trace_id", c.traceID)
	}
	return log
}

// withDeadline limits all phases but the post-hooks to what is left of the batch's time.
func (c *callRun) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.job.DeadlineMS > 0 {
		return context.WithTimeout(ctx, time.Duration(c.job.DeadlineMS)*time.Millisecond)
	}
	return context.WithCancel(ctx)
}

// phases runs all phases but the post-hooks. Just before the execute phase, it claims the
// call. The error is a *failure, or means that the call continues elsewhere.
func (c *callRun) phases(ctx context.Context, claim call.Claim) error {
	running, cancel := c.withDeadline(ctx)
	defer cancel()
	err := c.steps(running, []step{
		{phase: Validate, do: c.validate},
		{phase: Semantic, do: c.semantic},
		// Deny rules come first: they are cheap, and a denied call needs no hooks.
		{phase: Permissions, do: c.denied, early: true},
		{phase: PreHooks, do: c.preHooks},
		{phase: Permissions, do: c.permit},
	})
	if err != nil {
		return c.guard("", func() error { c.auditVoid(running, err); return err })
	}
	return c.steps(running, []step{
		{do: func(ctx context.Context) error { return c.claim(ctx, claim) }},
		{phase: Execute, do: func(running context.Context) error {
			err := c.steps(running, []step{{do: c.probe}, {do: c.storeAuditLine}, {do: c.execute}})
			// resolve must also work after the deadline, so it uses ctx.
			return c.resolve(trace.ContextWithSpan(ctx, trace.SpanFromContext(running)), err)
		}},
	})
}

// step is a part of the phases before the post-hooks.
type step struct {
	phase string // "": the step is not a phase, or belongs to the phase that calls it
	do    func(context.Context) error
	early bool // the step runs before its phase, and has a span only if it ends the call
}

// steps runs one step after another until the call has ended.
func (c *callRun) steps(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if c.ended { // a probe found that a lost attempt was applied
			return nil
		}
		err := c.stopped(ctx, nil)
		switch {
		case err != nil:
		case step.phase == "":
			err = c.guard(c.current, func() error { return step.do(ctx) })
		default:
			err = c.phase(ctx, step)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// permit runs the whole permissions phase on the final input.
func (c *callRun) permit(ctx context.Context) error {
	for _, part := range []func(context.Context) error{c.permissions, c.handBack, c.approval} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// handBack returns a *call.HandBack if the call was planned to run beside others, but with
// its frozen input must run alone.
func (c *callRun) handBack(context.Context) error {
	if safe, why := safety.Classify(c.tool.Tool, c.input); c.job.ConcurrencySafe && !safe {
		return &call.HandBack{Reason: why, ArgsHash: c.frozen.ArgsHash}
	}
	return nil
}

func (c *callRun) claim(ctx context.Context, claim call.Claim) error {
	c.grant = call.Grant{Attempt: 1}
	if claim != nil {
		var err error
		own := c.frozen
		own.Input, own.Permission = clone(c.input), c.permission()
		if c.grant, err = claim(ctx, own); err != nil {
			return err
		}
	}
	c.idempotencyKey = c.job.IdempotencyKey(c.frozen.ArgsHash)
	c.result.Attempt = c.grant.Attempt
	return nil
}

// settle turns a *failure into the result. It returns other errors unchanged.
func (c *callRun) settle(err error) error {
	var f *failure
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &f):
		return err
	}
	c.result.Status, c.result.Outcome = f.status, messages.Outcome{Err: f.err}
	return nil
}

// guard runs one step and turns a panic into a failure. The log shows where the panic
// happened. The model does not see its text.
func (c *callRun) guard(phase string, do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.logPanic(phase, v)
			err = c.broken()
		}
	}()
	return do()
}

// broken returns the failure of a call after a panic.
func (c *callRun) broken() *failure {
	switch {
	case c.ended:
		return fail(messages.StatusError, messages.CodeInternal,
			"%s has run, but what it gave could not be read. Do not repeat it if it changes anything.", c.job.Tool)
	case c.started && !c.harmless():
		return c.unknown("it broke down while it ran")
	case c.started:
		return fail(messages.StatusError, messages.CodeInternal, "%s broke down while it ran.", c.job.Tool)
	}
	return fail(messages.StatusError, messages.CodeInternal, "The call failed inside the worker. It was not run.")
}

// logPanic logs a panic. It logs the text only if it is a runtime error of Go, because
// other texts may hold arguments.
func (c *callRun) logPanic(phase string, v any) {
	what := fmt.Sprintf("%T", v)
	if err, ok := v.(runtime.Error); ok {
		what = err.Error()
	}
	c.log().Error("panic in a call", "phase", phase, "panic", what, "stack", string(debug.Stack()))
}

// stopped returns nil if ctx has not ended. Otherwise it returns the error with which the call
// ends. toolErr is the error that the tool returned, or nil.
func (c *callRun) stopped(ctx context.Context, toolErr error) error {
	if cause := context.Cause(ctx); cause != nil {
		return c.stoppedBy(ctx, cause, toolErr)
	}
	return nil
}

// stoppedBy returns the error with which the call ends after ctx has ended with cause.
func (c *callRun) stoppedBy(ctx context.Context, cause, toolErr error) error {
	late := errors.Is(cause, context.DeadlineExceeded)
	var stop *wire.Stop
	var how string
	switch {
	case late && c.started:
		how = fmt.Sprintf("it did not end within its time (%s) and was stopped", c.limit(ctx))
	case late:
		how = "there was no time left to start it"
	case errors.As(cause, &stop) && c.started:
		how = stop.Why() + "; it was stopped while it ran"
	case errors.As(cause, &stop):
		how = stop.Why() + "; it had not started"
	case !c.started || c.repeatable():
		return cause
	default:
		how = "the worker had to give it up while it ran"
	}
	f := fail(messages.StatusAborted, messages.CodeAborted, "%s: %s.", c.job.Tool, how)
	switch {
	case c.started && !c.harmless(), !c.started && c.maybeDone():
		f = c.unknown(how)
		f.err.Retryable = late && c.repeatable() // the next run has the same idempotency key
	case late:
		f = fail(messages.StatusTimeout, messages.CodeTimeout, "%s: %s.", c.job.Tool, how)
		f.err.Retryable = true
	}
	var own *messages.Error
	// The tool's own error often says why it took so long.
	if errors.As(toolErr, &own) && own != nil && own.Message != "" {
		f.err.Message += "\n" + c.readable(own.Message)
	}
	return f
}

// limit returns how much time the run had.
func (c *callRun) limit(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return c.tool.Timeout()
	}
	return min(c.tool.Timeout(), deadline.Sub(c.result.Started)).Round(time.Millisecond)
}

// harmless reports whether the tool changes nothing.
func (c *callRun) harmless() bool {
	return c.tool.Kind == messages.KindRead || c.tool.Kind == messages.KindCompute
}

// onCrash returns what may be done with the call if its worker is lost. A call that changes
// nothing may always run again, even if it is claimed.
func (c *callRun) onCrash() messages.OnCrash {
	if c.tool.Kind != messages.KindWrite {
		return messages.OnCrashIdempotent
	}
	return c.tool.OnCrash
}

// repeatable reports whether the tool may run again, with the same idempotency key, without
// harm.
func (c *callRun) repeatable() bool {
	return c.harmless() || c.tool.OnCrash == messages.OnCrashIdempotent
}

// maybeDone reports whether an earlier attempt may have been applied.
func (c *callRun) maybeDone() bool {
	return c.grant.Probe || c.grant.Attempt > 1 && c.tool.OnCrash == messages.OnCrashIdempotent
}

func (c *callRun) unknown(how string) *failure {
	return fail(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown,
		"%s may or may not have happened: %s. Do not repeat it blindly: check with a read, or ask a person.", c.job.Tool, how)
}

func fail(status messages.Status, code messages.Code, format string, args ...any) *failure {
	return &failure{status: status, err: &messages.Error{Code: code, Message: fmt.Sprintf(format, args...)}}
}
