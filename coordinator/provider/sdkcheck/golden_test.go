package sdkcheck

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/coordinator/provider/anthropic"
	"github.com/toolfleet/toolfleet/coordinator/provider/bedrock"
	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/coordinator/provider/export/exporttest"
	"github.com/toolfleet/toolfleet/coordinator/provider/gemini"
	"github.com/toolfleet/toolfleet/coordinator/provider/openaichat"
	"github.com/toolfleet/toolfleet/coordinator/provider/openairesponses"
)

type codec interface {
	provider.Codec
	exporttest.Exporter
}

// sdk reads messages and reinjections with one provider's types.
type sdk struct {
	codec codec
	// dir is the folder of the codec and its golden pairs.
	dir string
	// calls returns the ids of the calls that the SDK finds in a message, in order.
	calls func(t testing.TB, message json.RawMessage) []string
	// answered returns the ids that a reinjection answers, in order. It reads the JSON without
	// the SDK.
	answered func(t testing.TB, reinjection json.RawMessage) []string
	// again returns a reinjection as the SDK writes it after reading it. retold does the same
	// with tool definitions.
	again  func(t testing.TB, reinjection json.RawMessage) []byte
	retold func(t testing.TB, tools json.RawMessage) []byte
	// floatResults says that the SDK holds numbers in results as float64, and floatSchemas the
	// same of numbers in schemas.
	floatResults, floatSchemas bool
	// unreadable names the golden pairs whose reinjection the SDK's types cannot hold, with
	// the reason.
	unreadable map[string]string
}

const beyond = "1e400 does not fit a float64, and our codec keeps it"

var sdks = map[string]sdk{
	"anthropic": {anthropic.Codec{}, "anthropic", anthropicCalls, anthropicAnswered, anthropicAgain, anthropicRetold,
		false, true, nil},
	"openai-chat": {openaichat.Codec{}, "openaichat", chatCalls, chatAnswered, chatAgain, chatRetold,
		false, true, nil},
	"openai-responses": {openairesponses.Codec{}, "openairesponses", responsesCalls, responsesAnswered, responsesAgain, responsesRetold,
		false, true, nil},
	"bedrock": {bedrock.Codec{}, "bedrock", bedrockCalls, bedrockAnswered, bedrockAgain, bedrockRetold,
		false, false, nil},
	"gemini": {gemini.Codec{}, "gemini", geminiCalls, geminiAnswered, geminiAgain, geminiRetold,
		true, true, map[string]string{
			"exact_numbers":         beyond,
			"number_beyond_float64": beyond,
		}},
}

// TestGoldens reads every golden pair of every codec with the SDK's types.
func TestGoldens(t *testing.T) {
	for name, s := range sdks {
		t.Run(name, func(t *testing.T) {
			if n := s.checkFolder(t, "", true); n == 0 {
				t.Errorf("no goldens in %s/testdata", s.dir)
			}
			s.checkFolder(t, "lenient", false)
		})
	}
}

// checkFolder checks the golden pairs of a folder below testdata, and returns their number.
func (s sdk) checkFolder(t *testing.T, folder string, real bool) int {
	names, err := filepath.Glob(filepath.Join("..", s.dir, "testdata", folder, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		golden := strings.TrimSuffix(filepath.Base(name), ".txtar")
		t.Run(path.Join(folder, golden), func(t *testing.T) {
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			s.checkGolden(t, golden, archive(string(raw)), real)
		})
	}
	return len(names)
}

// checkGolden checks the reinjection of a golden pair. It checks the message too, unless real
// is false: the codecs accept some messages that the SDKs cannot represent.
func (s sdk) checkGolden(t *testing.T, golden string, files map[string]json.RawMessage, real bool) {
	message, reinjection := files["message.json"], files["reinjection.json"]
	if len(reinjection) == 0 {
		t.Skip("has no reinjection.json: a message that is refused")
	}
	var answered []string
	if empty := strings.TrimSpace(string(reinjection)); empty != "null" && empty != "[]" {
		answered = s.answered(t, reinjection)
		check := func(t testing.TB) { same(t, reinjection, s.again(t, reinjection), s.floatResults) }
		if why, ok := s.unreadable[golden]; !ok {
			check(t)
		} else if !fails(t, check) {
			t.Errorf("the SDK reads reinjection.json after all, though %s", why)
		}
	}
	if real {
		s.sameCalls(t, message, answered)
	}
}

// sameCalls fails the test if the SDK finds other calls in the message than those that were
// answered.
func (s sdk) sameCalls(t testing.TB, message json.RawMessage, answered []string) {
	t.Helper()
	if calls := s.calls(t, message); !slices.Equal(calls, answered) {
		t.Errorf("the SDK sees the calls %q in the message, the reinjection answers %q", calls, answered)
	}
}

// TestTools reads the exports of every codec with the SDK's types.
func TestTools(t *testing.T) {
	for name, s := range sdks {
		for _, strict := range []export.Strict{export.StrictDefault, export.StrictExact, export.StrictNullable} {
			t.Run(name+"/strict="+string(strict), func(t *testing.T) {
				for _, cache := range []bool{false, true} {
					tools, err := s.codec.ToolsWith(exporttest.Tools(), export.Options{Strict: strict, Cache: cache})
					if err != nil {
						t.Fatal(err)
					}
					same(t, tools, s.retold(t, tools), s.floatSchemas)
				}
			})
		}
	}
}

// Each of these reinjections differs from a right one in one thing: the check fails.
func TestWrongReinjectionsAreNoticed(t *testing.T) {
	for _, c := range []struct{ sdk, about, reinjection string }{
		{"anthropic", "unknown field", `{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","status":"ok"}]}`},
		{"anthropic", "missing id", `{"role":"user","content":[{"type":"tool_result"}]}`},
		{"openai-chat", "error flag", `[{"role":"tool","tool_call_id":"a","content":"x","is_error":true}]`},
		{"openai-chat", "null content", `[{"role":"tool","tool_call_id":"a","content":null}]`},
		{"openai-responses", "error flag", `[{"type":"function_call_output","call_id":"a","output":"x","is_error":true}]`},
		{"openai-responses", "missing call_id", `[{"type":"custom_tool_call_output","output":"x"}]`},
		{"bedrock", "error flag", `{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[{"text":"x"}],"is_error":true}}]}`},
		{"bedrock", "unknown content", `{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[{"xml":"x"}]}}]}`},
		{"gemini", "status", `{"role":"user","parts":[{"functionResponse":{"name":"a","response":{"output":1},"status":"ok"}}]}`},
		{"gemini", "empty response", `{"role":"user","parts":[{"functionResponse":{"name":"a","response":{}}}]}`},
	} {
		t.Run(c.sdk+"/"+c.about, func(t *testing.T) {
			s := sdks[c.sdk]
			reinjection := []byte(c.reinjection)
			if !fails(t, func(t testing.TB) { same(t, reinjection, s.again(t, reinjection), s.floatResults) }) {
				t.Errorf("the check finds nothing wrong with %s", c.reinjection)
			}
		})
	}
}

// fails reports whether a check fails, without failing the test.
func fails(t *testing.T, check func(testing.TB)) bool {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // on its own goroutine, because Fatalf ends the goroutine
		defer close(done)
		check(r)
	}()
	<-done
	return r.failed
}

// recorder is a testing.TB that records whether it failed, and does nothing else with
// failures.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }

func (r *recorder) Fatalf(string, ...any) {
	r.failed = true
	runtime.Goexit()
}

// archive returns the files of a txtar archive by name.
func archive(raw string) map[string]json.RawMessage {
	files := map[string]json.RawMessage{}
	name := ""
	for line := range strings.Lines(raw) {
		trimmed := strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(trimmed, "-- ") && strings.HasSuffix(trimmed, " --") && len(trimmed) > 6 {
			name = strings.TrimSpace(trimmed[3 : len(trimmed)-3])
			continue
		}
		if name != "" {
			files[name] = append(files[name], line...)
		}
	}
	return files
}
