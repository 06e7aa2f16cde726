// Package pipeline takes a call through its six phases, in this order, on the worker, at the call's turn:
//
//	1 validate       the arguments against the tool's schema
//	2 semantic       the tool's own rules: paths, sizes, what a schema cannot say
//	3 pre-hooks      user code: may refuse, or change the input, which then goes through 1 and 2 again
//	4 permissions    the rules, on the input as it now is and stays: it is frozen and hashed before; where a
//	                 person is wanted and nobody has agreed yet, it ends here with a question
//	5 execute        the tool itself, within its time
//	6 post-hooks     user code: sees every call that entered phase 1; may replace an output
//
// A call that fails in one of the first four is answered with that and its tool never starts. Deny rules
// are looked at once before any hook runs, too. Between four and five a call whose frozen input must run
// alone but was planned otherwise is handed back, and the others are claimed.
//
// An input that is frozen stays frozen. A call that goes on from a record (people have answered, an attempt has failed or
// was lost) takes its input from there, with what the hooks said about it; all other checks are made again.
//
// A tool that is checkable is asked what became of a run whose outcome is not known: before it is run again for
// a call of which an attempt was lost, and after it was stopped in the middle.
//
// Whatever happens, panics included, the answer is a result. An error of Run means that there is none
// here, because the call is, or will be, somebody else's. Post-hooks are then left to them as well. A run
// whose context is cancelled with a *messages.Stop ends aborted. With any other cause (a lost lease, a worker
// that goes away) Run returns that cause, unless the tool had started and may not be run again.
//
// Queueing, leases, deliveries and retries are left to worker/lane.
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
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas/safety"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The phases, as durations, logs and metrics name them.
const (
	Validate    = "validate"
	Semantic    = "semantic"
	PreHooks    = "pre-hooks"
	Permissions = "permissions"
	Execute     = "execute"
	PostHooks   = "post-hooks"
)

var phases = []string{Validate, Semantic, PreHooks, Permissions, Execute, PostHooks}

// Pipeline runs calls of the registry's tools. Safe for concurrent use.
type Pipeline struct {
	cfg      Config
	programs sync.Map // source to *expression.Program
}

// New checks the config.
func New(cfg Config) (*Pipeline, error) {
	if cfg.Registry == nil {
		return nil, errors.New("pipeline: there is no registry of tools")
	}
	if cfg.MaxInput < 0 || cfg.MaxOutput < 0 || cfg.KillGrace < 0 {
		return nil, errors.New("pipeline: a limit is negative")
	}
	return &Pipeline{cfg: cfg.withDefaults()}, nil
}

// Frozen is a call whose input nobody changes any more. What was decided about it holds for these very bytes.
type Frozen struct {
	Tool            tool.Tool
	Input           json.RawMessage
	Hooks           *messages.Hooks // what the hooks before the tool did; nil when there are none
	Permission      *messages.Permission
	ArgsHash        string // hex SHA-256 of the canonical input
	ConcurrencySafe bool   // by the frozen input
	Reason          string // why
}

// Grant is the leave to run the tool.
type Grant struct {
	Attempt int // counts the claims, from 1
	Fence   uint64
	Probe   bool // an attempt before this one was lost: ask the tool whether it was applied
	// IdempotencyKey is handed to the tool; "" stands for the job's own.
	IdempotencyKey string
}

// Claim is called between phases four and five. Its error ends the run without a result.
type Claim func(ctx context.Context, f Frozen) (Grant, error)

// Stricter is the error of a call that was planned to run beside others and, as its frozen input shows,
// must run alone. It was not run.
type Stricter struct {
	Reason   string
	ArgsHash string
}

func (s *Stricter) Error() string {
	return "planned to run beside others, but its input must run alone (" + s.Reason + ")"
}

// Asked is the error of a call that a person has to allow first. It was not run.
type Asked struct {
	Approval messages.Approval // the question, all but when it is asked and when it expires
	Hooks    *messages.Hooks   // what the hooks before the tool did; nil when there are none
	ArgsHash string
}

func (a *Asked) Error() string { return "a person has to allow it (" + a.Approval.Rule + ")" }

// call is one call on its way through the phases. It is owned by the goroutine of Run.
type call struct {
	*Pipeline
	job    messages.Job
	prior  *messages.CallRecord // the record that the job takes over from; nil: none
	tool   tool.Tool
	input  json.RawMessage // as the hooks left it; nobody changes it after the freeze
	frozen Frozen
	grant  Grant
	hooks  hook.Result       // of the pre-hooks
	ruling permission.Ruling // of phase four, or of whoever refused the call before it
	// Of the question that people have answered about the call one of these is set, once it has been checked.
	agreement *messages.Approval // it holds, and the call runs on it
	flaw      *messages.Refusal  // why it does not hold
	tell      func(messages.Event)
	started   bool // the tool was started
	ended     bool // and came back
	took      map[string]time.Duration
	at        string // the phase that it is in; "": between two
	failed    string // the phase in which it failed
	given     string // the hash of what the tool gave, where a hook has put something else in its place
	result    messages.Result
	span      trace.Span
	traceID   string // "": there is no trace
}

// failure is the end of a call in one of the phases: an error that becomes the result.
type failure struct {
	status messages.Status
	err    *messages.Error
	ask    bool // another run may do better, if this one has not been applied
}

func (f *failure) Error() string { return string(f.status) + ": " + f.err.Message }

// Run takes a job through the phases. The result lacks only what the lane knows: the worker, and the time
// in the queue. Prior is the record of the call's journal that the job takes over from: where it holds a frozen input,
// that is what runs, and the hooks before the tool are not run again. Claim may be nil where nothing needs to be claimed,
// and so may tell, which hears of events, fills in what they are about, and never blocks.
func (p *Pipeline) Run(ctx context.Context, job messages.Job, prior *messages.CallRecord, claim Claim, tell func(messages.Event)) (_ messages.Result, err error) {
	ctx, span := p.span(ctx, job)
	c := p.call(job, prior, tell)
	c.span, c.traceID = span, tracing.ID(ctx)
	defer func() { c.closeSpan(err) }()
	err = c.stopped(ctx, nil) // a call that is over already enters no phase
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
		c.tellOfEdit()
	}
	c.result.DurationMS = milliseconds(time.Since(c.result.Started))
	c.result.Trail = c.trail()
	for _, phase := range phases {
		if took, ok := c.took[phase]; ok {
			p.cfg.Observe(phase, took)
		}
	}
	return c.result, nil
}

func (p *Pipeline) call(job messages.Job, prior *messages.CallRecord, tell func(messages.Event)) *call {
	if tell == nil {
		tell = func(messages.Event) {}
	}
	return &call{
		Pipeline: p, job: job, prior: prior, input: frozenInput(job, prior), tell: tell, took: make(map[string]time.Duration, len(phases)),
		result: messages.Result{
			V: messages.Version, Index: job.Index, CallID: job.CallID, Tool: job.Tool, Started: time.Now(),
		},
	}
}

// log is the logger of lines about this call. It is made when there is something to say, which is seldom.
func (c *call) log() *slog.Logger {
	log := c.cfg.Logger.With("tenant", c.job.Tenant, "session", c.job.Session, "batch", c.job.Batch,
		"call", cmp.Or(string(c.job.CallID), strconv.Itoa(c.job.Index)), "tool", c.job.Tool)
	if c.traceID != "" {
		log = log.With("trace_id", c.traceID)
	}
	return log
}

// withDeadline bounds the phases up to the tool's end by what is left of the batch's time.
func (c *call) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.job.DeadlineMS > 0 {
		return context.WithTimeout(ctx, time.Duration(c.job.DeadlineMS)*time.Millisecond)
	}
	return context.WithCancel(ctx)
}

// phases is one to five, and what happens between them. Its error is a *failure, or says that the call
// ends elsewhere.
func (c *call) phases(ctx context.Context, claim Claim) error {
	running, cancel := c.withDeadline(ctx)
	defer cancel()
	err := c.steps(running, []step{
		{phase: Validate, do: c.validate},
		{phase: Semantic, do: c.semantic},
		{phase: Permissions, do: c.denied, early: true}, // the cheap look: no hook runs for a call that is denied anyway
		{phase: PreHooks, do: c.preHooks},
		{phase: Permissions, do: c.permit},
	})
	if err != nil {
		return c.guard("", func() error { c.auditVoid(running, err); return err })
	}
	return c.steps(running, []step{
		{do: func(ctx context.Context) error { return c.claim(ctx, claim) }},
		{phase: Execute, do: func(running context.Context) error {
			err := c.steps(running, []step{{do: c.probe}, {do: c.record}, {do: c.execute}})
			return c.resolve(trace.ContextWithSpan(ctx, trace.SpanFromContext(running)), err) // also when the time is up
		}},
	})
}

// step is a part of the way.
type step struct {
	phase string // that it is; "": none, or a part of the one around it
	do    func(context.Context) error
	early bool // it is heard of in a trace only where it ends the call: the phase itself comes later
}

// steps takes one step after the other, as long as the call goes on.
func (c *call) steps(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if c.ended { // by an attempt that was lost
			return nil
		}
		err := c.stopped(ctx, nil)
		switch {
		case err != nil:
		case step.phase == "":
			err = c.guard(c.at, func() error { return step.do(ctx) })
		default:
			err = c.phase(ctx, step)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// permit is all of phase four, on the input as it now is and stays.
func (c *call) permit(ctx context.Context) error {
	for _, part := range []func(context.Context) error{c.permissions, c.handBack, c.approval} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// handBack refuses to run a call under a weaker lock than its frozen input needs.
func (c *call) handBack(context.Context) error {
	c.frozen.ConcurrencySafe, c.frozen.Reason = safety.Classify(c.tool.Tool, c.input)
	if c.job.ConcurrencySafe && !c.frozen.ConcurrencySafe {
		return &Stricter{Reason: c.frozen.Reason, ArgsHash: c.frozen.ArgsHash}
	}
	return nil
}

func (c *call) claim(ctx context.Context, claim Claim) error {
	c.grant = Grant{Attempt: 1}
	if claim != nil {
		var err error
		own := c.frozen
		own.Input, own.Permission = clone(c.input), c.permission()
		if c.grant, err = claim(ctx, own); err != nil {
			return err
		}
	}
	if c.grant.IdempotencyKey == "" {
		c.grant.IdempotencyKey = c.job.IdempotencyKey(c.frozen.ArgsHash)
	}
	c.result.Attempt = c.grant.Attempt
	return nil
}

// settle makes the result of how the phases ended; an error that is no result is passed on.
func (c *call) settle(err error) error {
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

// guard runs one step and makes a failure of a panic. The model is not told what was in it; the log is told where it
// came from.
func (c *call) guard(phase string, do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.logPanic(phase, v)
			err = c.broken()
		}
	}()
	return do()
}

// broken is the failure after a panic.
func (c *call) broken() *failure {
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

// logPanic leaves out the text of a panic, which may hold arguments, unless the runtime itself wrote it.
func (c *call) logPanic(phase string, v any) {
	what := fmt.Sprintf("%T", v)
	if err, ok := v.(runtime.Error); ok {
		what = err.Error()
	}
	c.log().Error("panic in a call", "phase", phase, "panic", what, "stack", string(debug.Stack()))
}

// stopped is how a call ends whose context has ended, and nil while it goes on. said is what the tool
// came back with, if it did.
func (c *call) stopped(ctx context.Context, said error) error {
	cause := context.Cause(ctx)
	late := errors.Is(cause, context.DeadlineExceeded)
	var stop *messages.Stop
	var how string
	switch {
	case cause == nil:
		return nil
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
		f.err.Retryable = late && c.repeatable() // under the same key
	case late:
		f = fail(messages.StatusTimeout, messages.CodeTimeout, "%s: %s.", c.job.Tool, how)
		f.err.Retryable = true
	}
	var own *messages.Error
	if errors.As(said, &own) && own != nil && own.Message != "" { // the last words often tell why it took so long
		f.err.Message += "\n" + c.readable(own.Message)
	}
	return f
}

// limit is the whole time that the run had.
func (c *call) limit(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return c.tool.Timeout()
	}
	return min(c.tool.Timeout(), deadline.Sub(c.result.Started)).Round(time.Millisecond)
}

// harmless reports whether the tool changes nothing.
func (c *call) harmless() bool {
	return c.tool.Kind == messages.Read || c.tool.Kind == messages.Compute
}

// repeatable reports whether running the tool again, under the same idempotency key, can do no harm.
func (c *call) repeatable() bool { return c.harmless() || c.tool.OnCrash == messages.Idempotent }

// maybeDone reports whether an attempt before this one may have been applied.
func (c *call) maybeDone() bool {
	return c.grant.Probe || c.grant.Attempt > 1 && c.tool.OnCrash == messages.Idempotent
}

func (c *call) unknown(how string) *failure {
	return fail(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown,
		"%s may or may not have happened: %s. Do not repeat it blindly: check with a read, or ask a person.", c.job.Tool, how)
}

func fail(status messages.Status, code messages.Code, format string, args ...any) *failure {
	return &failure{status: status, err: &messages.Error{Code: code, Message: fmt.Sprintf(format, args...)}}
}
