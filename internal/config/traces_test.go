package config

import (
	"strings"
	"testing"
)

func TestTraceContent(t *testing.T) {
	const shared = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
	for name, tc := range map[string]struct {
		file string
		env  []string
		want bool
		from string
	}{
		"default":                    {"", nil, false, "default"},
		"file":                       {"trace_content: true\n", nil, true, "toolfleet.yaml:1"},
		"our variable":               {"", []string{"TOOLFLEET_TRACE_CONTENT=true"}, true, "TOOLFLEET_TRACE_CONTENT"},
		"the shared one":             {"", []string{shared + "=True"}, true, shared},
		"ours goes before it":        {"", []string{shared + "=true", "TOOLFLEET_TRACE_CONTENT=false"}, false, "TOOLFLEET_TRACE_CONTENT"},
		"what it says to others":     {"", []string{shared + "=EVENT_ONLY"}, false, "default"},
		"the file goes before it":    {"trace_content: false\n", []string{shared + "=true"}, false, "toolfleet.yaml:1"},
		"the shared one is not true": {"", []string{shared + "=false"}, false, "default"},
	} {
		t.Run(name, func(t *testing.T) {
			c := load(t, sources(tc.file, tc.env))
			if got := from(t, c, "trace_content"); c.Workers.TraceContent != tc.want || got.From != tc.from {
				t.Errorf("%v from %s, want %v from %s", c.Workers.TraceContent, got.From, tc.want, tc.from)
			}
		})
	}
}

func TestTraceLink(t *testing.T) {
	c := load(t, sources("trace_url: https://jaeger.example/trace/{trace_id}?uiFind=x\n", nil))
	if got := c.TraceLink("4bf9"); got != "https://jaeger.example/trace/4bf9?uiFind=x" {
		t.Errorf("links to %s", got)
	}
	if got := c.TraceLink("/../\x1b[2J"); strings.ContainsAny(got, "\x1b") || strings.Contains(got, "/../") {
		t.Errorf("links to %q", got)
	}
	if got := c.TraceLink(""); got != "" {
		t.Errorf("no trace links to %s", got)
	}
	if got := load(t, sources("", nil)).TraceLink("4bf9"); got != "" {
		t.Errorf("without trace_url the link is %s, want none", got)
	}
	for _, wrong := range []string{"http://localhost:16686/trace/", "{trace_id}", "javascript:{trace_id}", "http://x/{trace}/{trace_id}", "http://x/ {trace_id}"} {
		if _, err := Load(sources("", []string{"TOOLFLEET_TRACE_URL=" + wrong})); err == nil || !strings.Contains(err.Error(), "trace_url") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
