package provider_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// corpus returns the folder of a public corpus. The corpora lie beside the module and are not
// part of it. If they are missing, the test is skipped.
func corpus(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "shared", "corpora", name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the corpus %s is not here", name)
	}
	return dir
}

// TestNaughtyStrings sends each string through every dialect: as call id, tool name, argument
// and output.
func TestNaughtyStrings(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(corpus(t, "naughty-strings"), "blns.json"))
	if err != nil {
		t.Fatal(err)
	}
	var naughty []string
	if err := json.Unmarshal(raw, &naughty); err != nil {
		t.Fatal(err)
	}
	for _, p := range messages.Providers {
		codec := codecFor(t, p)
		for _, s := range naughty {
			if s == "" {
				continue
			}
			input := `{"k":` + string(rawjson.Quote(s)) + `}`
			calls, err := codec.Decode(json.RawMessage(naughtyMessage(p, s, input)))
			if err != nil || len(calls) != 1 || string(calls[0].ID) != s || calls[0].Name != s || string(calls[0].Input) != input {
				t.Errorf("%s, %q: got %+v, %v", p, s, calls, err)
				continue
			}
			reinjection, err := codec.Encode(calls, []messages.Outcome{messages.Text(s)})
			if err != nil {
				t.Errorf("%s, %q: %v", p, s, err)
			}
			if n := countText(t, reinjection, s); n < 2 && strings.TrimSpace(s) != "" {
				t.Errorf("%s, %q: id and output are not both in %s", p, s, reinjection)
			}
		}
	}
	t.Logf("%d strings in %d dialects", len(naughty), len(messages.Providers))
}

// naughtyMessage returns a message with one call whose id and name are s.
func naughtyMessage(p messages.Provider, s, input string) string {
	quoted := string(rawjson.Quote(s))
	message := oneCall[p][0]
	message = strings.Replace(message, `"name":"read"`, `"name":`+quoted, 1)
	if !strings.Contains(message, `{"k":1}`) {
		message = strings.Replace(message, `"{\"k\":1}"`, string(rawjson.Quote(input)), 1)
	} else {
		message = strings.Replace(message, `{"k":1}`, input, 1)
	}
	for _, id := range []string{`"id":"a"`, `"call_id":"a"`, `"toolUseId":"a"`} {
		message = strings.Replace(message, id, strings.TrimSuffix(id, `"a"`)+quoted, 1)
	}
	return message
}

// countText returns how many strings of a JSON value equal s.
func countText(t *testing.T, raw json.RawMessage, s string) (n int) {
	t.Helper()
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			if v == s {
				n++
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(value)
	return n
}

// TestJSONTestSuite checks the arguments of a call against the JSON test suite. Text that must
// not parse becomes the call's input error. Text that must parse is accepted, unless it breaks
// a bound. Nothing panics.
func TestJSONTestSuite(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(corpus(t, "json-test-suite"), "test_parsing", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	codec := codecFor(t, messages.OpenAIChat)
	counts := map[string]int{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		message := strings.Replace(oneCall[messages.OpenAIChat][0], `"{\"k\":1}"`, string(rawjson.Quote(string(raw))), 1)
		calls, err := codec.Decode(json.RawMessage(message))
		if err != nil {
			t.Errorf("%s: the message is refused: %v", file, err)
			continue
		}
		name := filepath.Base(file)
		isObject := len(raw) > 0 && raw[0] == '{'
		switch problem := calls[0].InputError; {
		case name[0] == 'n' && problem == "" && strings.TrimSpace(string(raw)) != "":
			t.Errorf("%s: taken as %.100s", name, calls[0].Input)
		case name[0] == 'y' && isObject && problem != "" && !strings.Contains(problem, "appears twice"):
			t.Errorf("%s: %s", name, problem)
		case len(problem) > 300:
			t.Errorf("%s: the problem has %d bytes", name, len(problem))
		}
		counts[name[:1]]++
	}
	t.Logf("%d that must parse, %d that must not, %d of either", counts["y"], counts["n"], counts["i"])
}
