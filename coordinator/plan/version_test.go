package plan_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// version returns a version of tool x whose schema requires a property with the version's
// name.
func version(t testing.TB, name string, change ...func(*schemas.Tool)) schemas.Tool {
	t.Helper()
	tool := schemas.Tool{Name: "x", Kind: messages.KindRead, InputSchema: json.RawMessage(fmt.Sprintf(`{"type":"object","required":[%q]}`, name))}
	for _, c := range change {
		c(&tool)
	}
	tool, err := tool.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func catalogOf(t testing.TB, tools ...schemas.Tool) schemas.Catalog {
	t.Helper()
	c, err := schemas.NewCatalog(tools...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// situation is everything on which the choice of a version depends. "" means none.
type situation struct {
	current   string // the current version of x
	catalogue string // "": the batch names no catalogue; "unknown"; "empty": x is not in it; or the version of x in it
	served    string // versions that workers serve
	input     string // properties of the input
}

// slowChoice follows the rule of the design step by step: it returns the version that the call
// uses, or the reason why it uses none.
func slowChoice(s situation) string {
	if s.current == "" && (s.catalogue == "" || s.catalogue == "unknown" || s.catalogue == "empty") {
		return "unknown_tool"
	}
	// A batch without a catalogue uses the current version. So does a tool that is not in the
	// catalogue.
	if s.catalogue == "" || s.catalogue == "empty" {
		return s.current
	}
	// A call uses the version in the catalogue as long as a worker serves it.
	if s.catalogue != "unknown" && strings.Contains(s.served, s.catalogue) {
		return s.catalogue
	}
	// The catalogue has the current version: the job waits for a worker.
	if s.catalogue == s.current {
		return s.current
	}
	// No worker serves the version: the current version is used if the input fits its schema.
	if s.current != "" && strings.Contains(s.input, s.current) {
		return s.current
	}
	// Otherwise the result is tool_version_gone.
	return "tool_version_gone"
}

func TestChoiceOfAVersion(t *testing.T) {
	versions := map[string]schemas.Tool{"a": version(t, "a"), "b": version(t, "b"), "c": version(t, "c")}
	nameOf := func(tool schemas.Tool) string {
		for name, v := range versions {
			if v.Digest == tool.Digest {
				return name
			}
		}
		return tool.Name
	}
	sets := []string{"", "a", "b", "c", "ab", "ac", "bc", "abc"}
	seen := map[string]int{}
	for _, current := range []string{"", "a", "b"} {
		for _, named := range []string{"", "unknown", "empty", "a", "b", "c"} {
			for _, served := range sets {
				for _, input := range sets {
					s := situation{current, named, served, input}
					tools := plan.Tools{Unknown: named == "unknown", Served: func(tool schemas.Tool) bool { return strings.Contains(served, nameOf(tool)) }}
					if current != "" {
						tools.Current = catalogOf(t, versions[current])
					}
					switch named {
					case "", "unknown":
					case "empty":
						tools.Named = new(catalogOf(t))
					default:
						tools.Named = new(catalogOf(t, versions[named]))
					}
					members := map[string]int{}
					for _, property := range strings.Split(input, "") {
						members[property] = 1
					}
					raw, _ := json.Marshal(members)
					planned := plan.With([]messages.ToolCall{{Name: "x", Input: raw}}, tools)
					got := "?"
					switch call := planned.Calls[0]; {
					case call.Refused != nil:
						got = string(call.Refused.Err.Code)
						if (got == "tool_version_gone") == (call.ToolDigest != "") && got != "unknown_tool" {
							t.Errorf("%+v: refused with the digest %q", s, call.ToolDigest)
						}
					case call.ToolDigest == call.Tool.Digest:
						got = nameOf(call.Tool)
					}
					want := slowChoice(s)
					if seen[want]++; got != want {
						t.Errorf("%+v: %s, want %s", s, got, want)
					}
				}
			}
		}
	}
	for _, want := range []string{"a", "b", "c", "unknown_tool", "tool_version_gone"} {
		if seen[want] == 0 {
			t.Errorf("no situation leads to %s: %v", want, seen)
		}
	}
}

// A version is gone: the model reads enough to correct the call.
func TestRefusalOfAVersionThatIsGone(t *testing.T) {
	tools := plan.Tools{
		Current: catalogOf(t, version(t, "new")), Named: new(catalogOf(t, version(t, "old"), schemas.Tool{Name: "dropped"})),
		Served: func(schemas.Tool) bool { return false },
	}
	calls := []messages.ToolCall{
		{Index: 0, Name: "x", Input: []byte(`{"old":1}`)}, {Index: 1, Name: "dropped", Input: []byte(`{}`)}, {Index: 2, Name: "x", InputError: "unreadable"},
	}
	p := plan.With(calls, tools)
	got := p.Calls[0].Refused
	if got.Status != messages.StatusValidationError || got.Kind != messages.KindRead || !strings.Contains(got.Err.Message, `"new"`) || got.Err.Details == nil || got.Err.Retryable {
		t.Errorf("the input fits the old version only: %+v, %v", got, got.Err)
	}
	if got := p.Calls[1].Refused; got.Status != messages.StatusUnknownTool || got.Err.Code != messages.CodeToolVersionGone {
		t.Errorf("a tool that is gone: %+v, %v", got, got.Err)
	}
	if got := p.Calls[2].Refused; got.Err.Code != messages.CodeInvalidArguments {
		t.Errorf("arguments that cannot be read: %+v", got.Err)
	}
	if diff := cmp.Diff([][]int{{0, 1, 2}}, p.Stages); diff != "" {
		t.Errorf("stages (-want +got)\n%s", diff)
	}
}

// The version of a call that has not started is gone: another version takes its place only if
// the plan stays the same.
func TestInsteadOfAVersionThatIsGone(t *testing.T) {
	safe := new(bool)
	*safe = true
	for name, tc := range map[string]struct {
		planned, current func(*schemas.Tool)
		input            string
		want             string // "other", "gone" or "none"
	}{
		"it fits":                       {nil, nil, `{"new":1,"old":1}`, "other"},
		"it does not fit":               {nil, nil, `{"old":1}`, "gone"},
		"a write":                       {func(t *schemas.Tool) { t.Kind = messages.KindWrite }, func(t *schemas.Tool) { t.Kind = messages.KindWrite }, `{"new":1}`, "other"},
		"a write by now":                {nil, func(t *schemas.Tool) { t.Kind = messages.KindWrite }, `{"new":1}`, "none"},
		"a read by now":                 {func(t *schemas.Tool) { t.Kind = messages.KindWrite }, nil, `{"new":1}`, "none"},
		"a compute by now":              {nil, func(t *schemas.Tool) { t.Kind = messages.KindCompute }, `{"new":1}`, "none"},
		"another pool":                  {nil, func(t *schemas.Tool) { t.Pool = "gpu" }, `{"new":1}`, "other"},
		"alone by now":                  {nil, func(t *schemas.Tool) { t.ConcurrencySafe = new(bool) }, `{"new":1}`, "none"},
		"alone before":                  {func(t *schemas.Tool) { t.ConcurrencySafe = new(bool) }, nil, `{"new":1}`, "other"},
		"fixed, and depends by now":     {nil, func(t *schemas.Tool) { t.SafeWhen = "has(input.new)" }, `{"new":1}`, "none"},
		"depended before":               {func(t *schemas.Tool) { t.SafeWhen = "has(input.new)" }, func(t *schemas.Tool) { t.SafeWhen = "has(input.new)" }, `{"new":1}`, "other"},
		"depended before, alone by now": {func(t *schemas.Tool) { t.SafeWhen = "has(input.new)" }, func(t *schemas.Tool) { t.SafeWhen = "has(input.old)" }, `{"new":1}`, "none"},
		"a compute, and safe":           {func(t *schemas.Tool) { t.Kind = messages.KindCompute }, func(t *schemas.Tool) { t.Kind, t.ConcurrencySafe = messages.KindCompute, safe }, `{"new":1}`, "other"},
	} {
		t.Run(name, func(t *testing.T) {
			changes := func(change func(*schemas.Tool)) (all []func(*schemas.Tool)) {
				if change != nil {
					all = append(all, change)
				}
				return all
			}
			old, current := version(t, "old", changes(tc.planned)...), version(t, "new", changes(tc.current)...)
			call := plan.New([]messages.ToolCall{{Name: "x", Input: []byte(tc.input)}}, catalogOf(t, old)).Calls[0]
			choice := plan.Tools{Current: catalogOf(t, current)}.Instead(call)
			got := "none"
			switch {
			case choice.Gone != "":
				got = "gone"
			case choice.Known && choice.Tool.Digest == current.Digest:
				got = "other"
				again := plan.New([]messages.ToolCall{{Name: "x", Input: []byte(tc.input)}}, catalogOf(t, current)).Calls[0]
				if call.ConcurrencySafe && !again.ConcurrencySafe || call.Fixed && !again.Fixed || call.Kind != again.Kind {
					t.Errorf("the plan would be another: %+v, %+v", call.PlannedCall, again.PlannedCall)
				}
			}
			if got != tc.want {
				t.Errorf("got %s (%s), want %s", got, choice.Gone, tc.want)
			}
			if same := (plan.Tools{Current: catalogOf(t, old)}).Instead(call); same.Known || same.Gone != "" {
				t.Errorf("instead of the current version: %+v", same)
			}
		})
	}
	if none := (plan.Tools{}).Instead(plan.New(calls("x"), catalogOf(t, version(t, "old"))).Calls[0]); none.Known {
		t.Errorf("instead of a tool that is gone: %+v", none)
	}
}

func TestWaitsForAVersion(t *testing.T) {
	old, current := version(t, "old"), version(t, "new")
	for name, tc := range map[string]struct {
		named  *schemas.Catalog
		served []string
		want   bool
	}{
		"nothing is served":         {new(catalogOf(t, old)), nil, true},
		"the version is served":     {new(catalogOf(t, old)), []string{old.Digest}, false},
		"the current one is served": {new(catalogOf(t, old)), []string{current.Digest}, false},
		"it names the current one":  {new(catalogOf(t, current)), nil, false},
		"it names no catalogue":     {nil, nil, false},
		"its catalogue has no x":    {new(catalogOf(t)), nil, false},
	} {
		tools := plan.Tools{Current: catalogOf(t, current), Named: tc.named, Served: func(t schemas.Tool) bool { return slices.Contains(tc.served, t.Digest) }}
		if got := tools.Waits("x"); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if tools.Waits("unknown") {
			t.Errorf("%s: waits for a tool that nobody knows", name)
		}
	}
}
