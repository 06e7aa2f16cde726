package provider_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"os"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

var update = flag.Bool("update", false, "write what the codecs say into the golden pairs; read the diff")

// folders lists the folder of each codec, with its golden pairs.
var folders = map[messages.Provider]string{
	messages.Anthropic:       "anthropic",
	messages.OpenAIChat:      "openaichat",
	messages.OpenAIResponses: "openairesponses",
	messages.Bedrock:         "bedrock",
	messages.Gemini:          "gemini",
	messages.Canonical:       "canonical",
}

// TestGolden runs every golden pair through Reinject. The input is message.json and
// results.json. The output is reinjection.json and calls.json, or error.json. Messages in
// testdata/lenient are accepted although the provider's own SDK would not send or read them.
func TestGolden(t *testing.T) {
	for p, folder := range folders {
		files, _ := filepath.Glob(filepath.Join(folder, "testdata", "*.txtar"))
		lenient, _ := filepath.Glob(filepath.Join(folder, "testdata", "lenient", "*.txtar"))
		files = append(files, lenient...)
		if len(files) < 12 {
			t.Errorf("%s has only %d golden pairs", p, len(files))
		}
		for _, file := range files {
			t.Run(string(p)+"/"+strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { golden(t, p, file) })
		}
	}
}

func golden(t *testing.T, p messages.Provider, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var in, want []txtar.File
	var message, results json.RawMessage
	for _, f := range archive.Files {
		switch f.Name {
		case "message.json":
			in, message = append(in, f), f.Data
		case "results.json":
			in, results = append(in, f), f.Data
		default:
			want = append(want, f)
		}
	}
	got := goldenOutput(t, p, message, results)
	if *update {
		archive.Files = append(in, got...)
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(texts(want), texts(got)); diff != "" {
		t.Errorf("%s: -want +got\n%s", file, diff)
	}
}

func goldenOutput(t *testing.T, p messages.Provider, message, results json.RawMessage) []txtar.File {
	t.Helper()
	request := `{"provider":"` + string(p) + `","message":` + string(message)
	if results != nil {
		request += `,"results":` + string(results)
	}
	answer, err := provider.Reinject([]byte(request + "}"))
	if err != nil {
		var refusal *messages.Refusal
		if !errors.As(err, &refusal) {
			t.Fatalf("want a refusal, got %v", err)
		}
		return []txtar.File{{Name: "error.json", Data: indent(t, rawjson.MustMarshal(refusal))}}
	}
	var parts struct{ Reinjection, Calls json.RawMessage }
	if err := json.Unmarshal(answer, &parts); err != nil {
		t.Fatal(err)
	}
	return []txtar.File{
		{Name: "calls.json", Data: indent(t, parts.Calls)},
		{Name: "reinjection.json", Data: indent(t, parts.Reinjection)},
	}
}

func texts(files []txtar.File) map[string]string {
	m := map[string]string{}
	for _, f := range files {
		m[f.Name] = string(f.Data)
	}
	return m
}

// indent formats JSON for readers, without a change of its tokens.
func indent(t *testing.T, raw []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}
