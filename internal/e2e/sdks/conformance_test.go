package sdks

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The conformance suite reports exactly the failures that conformance-*.yml list.
func TestConformance(t *testing.T) {
	dir := installed(t)
	f := newFleet(t, conformanceTools)
	for _, suite := range []struct {
		name, version, scenarios string
	}{
		{"conformance-2025", "2025-11-25", "active"},
		{"conformance-2026", "2026-07-28", "all"},
	} {
		t.Run(suite.version, func(t *testing.T) {
			baseline, err := filepath.Abs("conformance-" + suite.version + ".yml")
			must(t, err)
			cmd := exec.Command("node", "--import", "./oldnode.mjs", filepath.Join("node_modules", suite.name, "dist", "index.js"), "server",
				"--url", f.url+"/mcp/conformance", "--suite", suite.scenarios, "--spec-version", suite.version, "--expected-failures", baseline, "--output-dir", filepath.Join(cmp.Or(os.Getenv("SDK_RESULTS"), dir), suite.version))
			cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
			out, err := cmd.CombinedOutput()
			_, summary, _ := strings.Cut(string(out), "=== SUMMARY ===")
			t.Log(summary)
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// conformanceTools adds the tools that the suite calls, as far as a fleet can have them.
func conformanceTools(f *testFleet) {
	f.t.Helper()
	blocks := func(all ...messages.Block) tool.Func {
		return func(context.Context, tool.Call) (tool.Output, error) { return tool.Output{Content: all}, nil }
	}
	text := func(s string) messages.Block { return messages.Block{Type: "text", Text: s} }
	image := messages.Block{Type: "image", Data: "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", MimeType: "image/png"}
	resource := func(uri, mime, s string) messages.Block {
		return messages.Block{Type: "resource", Resource: &messages.Resource{URI: uri, MimeType: mime, Text: s}}
	}
	for name, run := range map[string]tool.Func{
		"test_simple_text":       blocks(text("This is a simple text response for testing.")),
		"test_image_content":     blocks(image),
		"test_audio_content":     blocks(messages.Block{Type: "audio", Data: "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=", MimeType: "audio/wav"}),
		"test_embedded_resource": blocks(resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")),
		"test_multiple_content_types": blocks(text("Multiple content types test:"), image,
			resource("test://mixed-content-resource", "application/json", `{"test":"data","value":123}`)),
		"test_error_handling": func(context.Context, tool.Call) (tool.Output, error) {
			return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: "This tool intentionally returns an error for testing"}
		},
		"test_tool_with_progress": func(_ context.Context, c tool.Call) (tool.Output, error) {
			for _, fraction := range []float64{0.1, 0.5, 1} {
				c.Progress(messages.Progress{Fraction: fraction, Text: "on its way"})
			}
			return tool.Text("done"), nil
		},
	} {
		must(f.t, f.tools.Add(schemas.Tool{Name: name, Kind: messages.KindRead, Description: "For the suite.", InputSchema: []byte(`{"type":"object"}`)}, run))
	}
	must(f.t, f.tools.Add(schemas.Tool{Name: "json_schema_2020_12_tool", Kind: messages.KindRead, Description: "For the suite.", InputSchema: schema2020}, blocks(text("ok"))))
}

// schema2020 has the keywords that the suite expects in the list of tools.
var schema2020 = []byte(`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
	"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},
	"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},
		"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},
	"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],
	"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},
	"additionalProperties":false}`)
