package safety

import (
	"encoding/json"
	"sync"

	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/schemas/expression"
)

// programs caches compiled conditions by their text. It has one program for each tool with a
// condition, and is cleared when it has maxPrograms.
var programs = struct {
	mu  sync.Mutex
	all map[string]*expression.Program // guarded by mu; nil for a text that does not compile
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
	if len(programs.all) >= maxPrograms { // most are of tools that do not exist any more
		clear(programs.all)
	}
	programs.all[source] = p
	return p
}

// condition evaluates the tool's own condition. The condition can read only the tool and the
// input, because session, principal and labels are not known when a batch is planned. If the
// condition cannot be evaluated, the call runs alone.
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
