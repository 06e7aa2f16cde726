package plan_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func catalog(t testing.TB) schemas.Catalog {
	t.Helper()
	c, err := schemas.NewCatalog(
		schemas.Tool{Name: "read", Kind: messages.KindRead},
		schemas.Tool{Name: "write", Kind: messages.KindWrite},
		schemas.Tool{Name: "sum", Kind: messages.KindCompute},
		schemas.Tool{Name: "Bash", Kind: messages.KindWrite, ShellCommand: "command"},
		schemas.Tool{Name: "shy", Kind: messages.KindRead, ConcurrencySafe: new(bool)},
	)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func calls(names ...string) []messages.ToolCall {
	var cs []messages.ToolCall
	for i, n := range names {
		cs = append(cs, messages.ToolCall{Index: i, ID: messages.CallID(fmt.Sprint("call", i)), Name: n, Input: []byte(`{}`)})
	}
	return cs
}

func TestStages(t *testing.T) {
	for _, tt := range []struct {
		name  string
		calls []string
		want  [][]int
	}{
		{"nothing", nil, nil},
		{"reads run together", []string{"read", "read", "sum"}, [][]int{{0, 1, 2}}},
		{"a write splits the reads around it", []string{"read", "write", "read"}, [][]int{{0}, {1}, {2}}},
		{"writes run one by one", []string{"write", "write"}, [][]int{{0}, {1}}},
		{"a read that says it may not overlap runs alone", []string{"read", "shy", "read"}, [][]int{{0}, {1}, {2}}},
		{"an unknown tool holds nobody up", []string{"read", "nope", "read", "write"}, [][]int{{0, 1, 2}, {3}}},
		{"an unknown tool after a write", []string{"write", "nope", "write"}, [][]int{{0}, {1}, {2}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := plan.New(calls(tt.calls...), catalog(t)).Stages
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("stages of %v (-want +got):\n%s", tt.calls, diff)
			}
		})
	}
}

func TestParsedInputDecides(t *testing.T) {
	cs := calls("Bash", "Bash", "read")
	cs[0].Input = []byte(`{"command":"ls -l"}`)
	cs[1].Input = []byte(`{"command":"rm x"}`)
	want := [][]int{{0}, {1}, {2}}
	if got := plan.New(cs, catalog(t)).Stages; !cmp.Equal(want, got) {
		t.Errorf("ls, rm, read: got stages %v, want %v", got, want)
	}
	cs[1].Input = []byte(`{"command":"cat x"}`)
	want = [][]int{{0, 1, 2}}
	if got := plan.New(cs, catalog(t)).Stages; !cmp.Equal(want, got) {
		t.Errorf("ls, cat, read: got stages %v, want %v", got, want)
	}
}

func TestMalformedArgumentsNeverRun(t *testing.T) {
	cs := calls("write")
	cs[0].Input, cs[0].InputError = nil, "ends in the middle of a value"
	p := plan.New(cs, catalog(t))
	if r := p.Calls[0].Refused; r == nil || r.Err.Code != messages.CodeInvalidArguments {
		t.Errorf("a write with unreadable arguments: got refused %+v; want its result at once", r)
	}
}

// A call has no name: it names no tool, even if its namespace and an empty name together spell
// a tool's name.
func TestACallWithoutANameNeverRuns(t *testing.T) {
	tools, err := schemas.NewCatalog(schemas.Tool{Name: "files__", Kind: messages.KindRead})
	if err != nil {
		t.Fatal(err)
	}
	cs := calls("", "", "files__")
	cs[1].Namespace = "files"
	p := plan.New(cs, tools)
	for _, c := range p.Calls[:2] {
		if r := c.Refused; r == nil || r.Status != messages.StatusUnknownTool || r.Tool != "" ||
			r.Err.Message != "The call names no tool. Tools that exist: files__." {
			t.Errorf("call %d: got refused %+v, want unknown_tool", c.Index, r)
		}
	}
	if p.Calls[2].Refused != nil {
		t.Errorf("the call of files__ is refused: %+v", p.Calls[2].Refused)
	}
}

// A name is longer than a record may hold: it names no tool, and the records have its start.
func TestAVeryLongNameIsCutInTheRecords(t *testing.T) {
	p := plan.New(calls(strings.Repeat("é", messages.MaxID)), catalog(t))
	r := p.Calls[0].Refused
	if r.Status != messages.StatusUnknownTool || len(r.Tool) > messages.MaxID || !strings.HasPrefix(r.Tool, "éé") || !utf8.ValidString(r.Tool) {
		t.Errorf("got %v, want unknown_tool under the start of the name", r.Err)
	}
}

// A stored plan says whether a call is fixed, and this counts, whatever this coordinator knows
// of the tool. Other drivers go by the stored plan: later batches may pass a fixed call, and
// wait for one that is not fixed.
func TestAnAdoptedPlanSaysWhatIsFixed(t *testing.T) {
	p := plan.New(calls("read", "write"), catalog(t))
	for _, fixed := range []bool{true, false} {
		record := wire.PlanRecord{Calls: p.Record()}
		record.Calls[0].Fixed = fixed
		adopted, err := p.Adopt(record)
		if err != nil || adopted.Calls[0].Fixed != fixed {
			t.Errorf("fixed is %v, err %v; the stored plan says %v", adopted.Calls[0].Fixed, err, fixed)
		}
	}
}

// The plan agrees with the rule for stages in its simplest form: two calls are in one stage
// exactly if every call from the first to the second may overlap.
func TestAgainstTheTwin(t *testing.T) {
	names := []string{"read", "write", "sum", "shy", "nope"}
	together := map[string]bool{"read": true, "sum": true, "nope": true}
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		picked := make([]string, rng.IntN(12))
		for i := range picked {
			picked[i] = names[rng.IntN(len(names))]
		}
		p := plan.New(calls(picked...), catalog(t))
		for i := range picked {
			for j := i + 1; j < len(picked); j++ {
				want := true
				for _, n := range picked[i : j+1] {
					want = want && together[n]
				}
				if got := p.Calls[i].Stage == p.Calls[j].Stage; got != want {
					t.Fatalf("seed %d, %v: calls %d and %d in one stage: got %v, want %v", seed, picked, i, j, got, want)
				}
				if p.Calls[i].Stage > p.Calls[j].Stage {
					t.Fatalf("seed %d, %v: call %d is planned after call %d", seed, picked, i, j)
				}
			}
		}
		adopted, err := p.Adopt(wire.PlanRecord{Calls: p.Record()})
		if err != nil || !cmp.Equal(p.Stages, adopted.Stages) {
			t.Fatalf("seed %d, %v: adopting the plan's own record gives stages %v, err %v; want %v", seed, picked, adopted.Stages, err, p.Stages)
		}
	}
}
