// Package hook runs user code before or after a tool, in the pre-hooks and post-hooks phases.
//
// A hook gets a copy of the call and answers with a value. Changing the copy does not
// change the call. Before a tool, a hook may allow, deny or ask, change the input, add
// context for the model, or say that the agent should stop. After a tool, it may replace
// the output, add context, or say stop. It cannot turn a success into a failure.
//
// A hook that panics, returns an error or takes too long has no opinion on the call. If it
// is a gate, the call is refused. If it is an observer, the failure is counted and the call
// goes on.
//
// This package runs lists of hooks. Package worker/pipeline acts on their answers.
package hook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Class says what happens to a call if a hook could not run.
type Class string

// If a gate could not run, the call is refused. If an observer could not run, the call goes
// on.
const (
	Gate    Class = "gate"
	Observe Class = "observe"
)

// DefaultBudget limits one run of a hook that has no budget.
const DefaultBudget = 5 * time.Second

// Limits of the texts of hooks, in characters. The texts go into records, events and the
// model's context. They may repeat text of unknown origin.
const (
	MaxReason  = 2000   // one reason, and the text of one HookMessage
	MaxContext = 10_000 // all context texts of a list of hooks together
)

// Hook is one piece of user code. Before or After must be set, or both. Many goroutines may
// call these functions at once.
type Hook struct {
	Name string // unique in its set; decisions, logs and events carry it
	// Match selects the tools that the hook is for: names or patterns of path.Match with | between
	// them, such as Edit|Write|mcp__*. "" matches every tool.
	Match string
	// Priority orders the hooks of a set, lowest first. Hooks of the same priority run by name.
	Priority int
	Class    Class // default Gate
	// Budget limits one run of one function. Default [DefaultBudget]. If a function ignores
	// its context, it goes on when its budget is used up, and nothing waits for it.
	Budget time.Duration
	Before func(context.Context, Call) (Verdict, error)
	After  func(context.Context, Call, Done) (Change, error)
	// BeforeProgram and AfterProgram name, for failures, the program or address that the
	// function asks, in the operator's words. "": the function is Go code that asks none.
	BeforeProgram, AfterProgram string
	// Keep is what runs between calls for as long as the set is used: see [Set.Run].
	Keep []Kept

	last *atomic.Pointer[Failure] // the failure of the newest run, or nil; set by NewSet
}

// Kept is something that a hook keeps running between calls, such as a process.
type Kept struct {
	// Start makes it ready before the first call. If it returns an error, it does not run
	// now, and a call may start it later.
	Start func(context.Context) error
	// Stop ends it. It is called once for each Start, even if Start failed.
	Stop func()
}

// Call is a hook's own copy of what is known about a call.
type Call struct {
	Tenant  messages.TenantID
	Session messages.SessionID
	Batch   messages.BatchID
	ID      messages.CallID
	Index   int
	Tool    string
	Kind    messages.Kind // "" for an unknown tool
	// User is the user for whom the call runs, or "" if unknown. Labels are those of the
	// batch.
	User   string
	Labels map[string]string
	// Input is the arguments. In Before, these are the arguments after the changes of earlier
	// hooks. In After, these are the arguments with which the call ended.
	Input json.RawMessage
}

// Opinion says what a hook thinks of a call.
type Opinion string

// The opinions. Deny beats ask, and ask beats allow. A hook without an opinion leaves the call to
// the rules.
const (
	None  Opinion = ""
	Allow Opinion = "allow"
	Ask   Opinion = "ask"
	Deny  Opinion = "deny"
)

// Verdict is a hook's answer before the tool. The zero value changes nothing.
type Verdict struct {
	Opinion Opinion
	Reason  string // why the hook has the opinion, for the model and for people
	// Input replaces the whole input; nil keeps it. A new input is validated and checked
	// again, and the permission rules decide about it.
	Input json.RawMessage
	// Stop asks the agent to stop after this batch, with StopReason. The call itself still
	// runs, unless the opinion is Deny.
	Stop       bool
	StopReason string
	Context    string // a text for the model, shown with the call's output
}

// Done is a hook's own copy of how a call ended.
type Done struct {
	Status   messages.Status
	Outcome  messages.Outcome
	Duration time.Duration // the duration of all phases up to now
}

// Change is a hook's answer after the tool. The zero value changes nothing.
type Change struct {
	// Output or Content replaces the output of the tool. Both are ignored if the call has
	// no output, because it failed or never ran.
	Output     json.RawMessage
	Content    []messages.Block
	Stop       bool
	StopReason string
	Context    string
}

// Set is a list of hooks in the order in which they run. The zero value has no hooks. It is safe
// for concurrent use.
type Set struct{ hooks []Hook }

// NewSet checks and sorts hooks. The error joins all mistakes in them.
func NewSet(hooks ...Hook) (Set, error) {
	var errs []error
	names := map[string]bool{}
	set := Set{slices.Clone(hooks)}
	for i := range set.hooks {
		h := &set.hooks[i]
		h.Class = cmp.Or(h.Class, Gate)
		h.Budget = cmp.Or(h.Budget, DefaultBudget)
		h.last = &atomic.Pointer[Failure]{}
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("hook %.80q: %s", h.Name, fmt.Sprintf(format, args...)))
		}
		if h.Name == "" || names[h.Name] {
			wrong("its name is empty or taken")
		}
		names[h.Name] = true
		if !wellFormed(h.Match) {
			wrong("match %.80q is malformed: want names of tools, with * and ? and [a-z], and | between them", h.Match)
		}
		if h.Class != Gate && h.Class != Observe {
			wrong("class %.20q: want gate or observe", h.Class)
		}
		if h.Budget < 0 {
			wrong("its budget is negative")
		}
		if h.Before == nil && h.After == nil {
			wrong("it has neither a before nor an after")
		}
	}
	slices.SortFunc(set.hooks, func(a, b Hook) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	return set, errors.Join(errs...)
}

// Run starts what the hooks keep running, and stops it when ctx ends. After that no hook
// may be called. A hook may be called before its start is done.
func (s Set) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, h := range s.hooks {
		for _, kept := range h.Keep {
			wg.Go(func() {
				defer kept.Stop()
				if err := kept.Start(ctx); err != nil && ctx.Err() == nil {
					h.last.Store(&Failure{Hook: h.Name, Class: h.Class, Cause: NotStarted, Err: err})
				}
				<-ctx.Done()
			})
		}
	}
	<-ctx.Done()
	wg.Wait()
}

// Failing returns the hooks whose last start or run failed.
func (s Set) Failing() (failures []*Failure) {
	for _, h := range s.hooks {
		if failure := h.last.Load(); failure != nil {
			failures = append(failures, failure)
		}
	}
	return failures
}

// BudgetAfter returns how long all hooks after a tool may take together.
func (s Set) BudgetAfter(tool string) (sum time.Duration) {
	for _, h := range s.hooks {
		if h.After != nil && h.matches(tool) {
			sum += h.Budget
		}
	}
	return sum
}

func (h Hook) matches(tool string) bool {
	if h.Match == "" {
		return true
	}
	return slices.ContainsFunc(strings.Split(h.Match, "|"), func(pattern string) bool {
		ok, _ := path.Match(pattern, tool) // NewSet has checked the pattern
		return ok
	})
}

// notInPatterns matches characters that neither a tool's name nor a pattern may have.
// Without this check, a regular expression such as mcp__.* would match no tool, and a gate
// that matches nothing lets every call pass.
var notInPatterns = regexp.MustCompile(`[^A-Za-z0-9_*?\[\]^-]`)

func wellFormed(match string) bool {
	if match == "" {
		return true
	}
	return !slices.ContainsFunc(strings.Split(match, "|"), func(pattern string) bool {
		_, err := path.Match(pattern, "")
		return err != nil || pattern == "" || notInPatterns.MatchString(pattern)
	})
}
