package safety

import (
	"encoding/json"
	"sync"

	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/schemas/expression"
)

// programs is what has been compiled, by its text: one for each tool that has a condition, for as long as there are
// not many more than that.
var programs = struct {
	mu  sync.Mutex
	all map[string]*expression.Program // guarded by mu; nil for a text that is no expression
}{all: map[string]*expression.Program{}}

const maxPrograms = 1000

func program(source string) *expression.Program {
	programs.mu.Lock()
	p, known := programs.all[source]
	programs.mu.Unlock()
	if known {
		return p
	}
	p, _ = expression.Compile(source, expression.Bool)
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if len(programs.all) >= maxPrograms { // tools that are long gone
		clear(programs.all)
	}
	programs.all[source] = p
	return p
}

// condition asks the tool's own expression. It is about the tool and the input alone: a plan is made where nobody
// knows whose the call is. What cannot be evaluated runs alone.
func condition(t schemas.Tool, input json.RawMessage) (safe bool, reason string) {
	p := program(t.SafeWhen)
	if p == nil {
		return false, "concurrency_safe: it is no expression"
	}
	safe, err := p.Bool(expression.NewSubject(expression.Call{Tool: t.Name, Kind: t.Kind, Pool: t.Pool, Input: input}))
	switch {
	case err != nil:
		return false, "concurrency_safe: " + err.Error()
	case !safe:
		return false, "concurrency_safe says that it runs alone"
	}
	return true, "concurrency_safe says so"
}
