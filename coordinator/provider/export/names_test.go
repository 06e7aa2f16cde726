package export_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/messages"
)

// everywhere matches the names that all providers accept.
var everywhere = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$`)

func TestName(t *testing.T) {
	long := strings.Repeat("x", 65)
	for _, c := range []struct {
		provider   messages.Provider
		name, want string
	}{
		{messages.Anthropic, "lookup_order", "lookup_order"},
		{messages.Anthropic, "3d_render", "3d_render"},
		{messages.Gemini, "3d_render", "_3d_render_81d5d540"},
		{messages.Gemini, "-x", "_-x_a4209624"},
		{messages.Gemini, "fs.read", "fs.read"},
		{messages.OpenAIChat, "fs.read", "fs_read_4074bc02"},
		{messages.OpenAIResponses, "fs.read", "fs_read_4074bc02"},
		{messages.Bedrock, "größe", "gr__e_d353a267"},
		{messages.Bedrock, long, strings.Repeat("x", 55) + "_9537c5fd"},
		{messages.Canonical, "any thing. at all", "any thing. at all"},
	} {
		if got := export.Name(c.provider, c.name); got != c.want {
			t.Errorf("Name(%s, %q) = %q, want %q", c.provider, c.name, got, c.want)
		}
	}
}

func TestNamesMapBack(t *testing.T) {
	tools := []string{"a", "a.b", "a_b", "3d", "x y", strings.Repeat("n", 200)}
	for _, p := range messages.Providers {
		names, err := export.NewNames(p, tools...)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		for _, tool := range tools {
			wire := names.Wire(tool)
			if got, ok := names.Tool(wire); !ok || got != tool {
				t.Errorf("%s: %q has the name %q, which maps back to %q, %t", p, tool, wire, got, ok)
			}
			if wire != tool && !everywhere.MatchString(wire) {
				t.Errorf("%s: %q has the name %q, which some provider refuses", p, tool, wire)
			}
			if _, ok := names.Tool(tool); ok && wire != tool {
				t.Errorf("%s: %q has the name %q, but its own name is known too", p, tool, wire)
			}
		}
		for _, alias := range []string{"", "A", "a ", "a_b_", "__proto__"} {
			if tool, ok := names.Tool(alias); ok {
				t.Errorf("%s: %q is the name of no tool, got %q", p, alias, tool)
			}
		}
	}
}

func TestNamesThatClash(t *testing.T) {
	mapped := export.Name(messages.OpenAIChat, "fs.read")
	for _, c := range []struct {
		tools []string
		want  string
	}{
		{[]string{"a", "b", "a"}, `tool "a" is defined twice`},
		{[]string{"fs.read", mapped}, fmt.Sprintf(`tools "fs.read" and %q are both called %q on openai-chat: rename one`, mapped, mapped)},
		{[]string{mapped, "fs.read"}, fmt.Sprintf(`tools "fs.read" and %q are both called %q on openai-chat: rename one`, mapped, mapped)},
		{[]string{""}, "a tool without a name"},
	} {
		if _, err := export.NewNames(messages.OpenAIChat, c.tools...); err == nil || err.Error() != c.want {
			t.Errorf("NewNames(%q): %v, want %s", c.tools, err, c.want)
		}
	}
}

func FuzzName(f *testing.F) {
	f.Add("lookup")
	f.Add("3\xff\x00é")
	f.Fuzz(func(t *testing.T, name string) {
		for _, p := range messages.Providers {
			wire := export.Name(p, name)
			if name == "" || wire == name {
				continue
			}
			if !everywhere.MatchString(wire) {
				t.Errorf("Name(%s, %q) = %q", p, name, wire)
			}
			if again := export.Name(p, wire); again != wire {
				t.Errorf("Name(%s, %q) = %q, and that again %q", p, name, wire, again)
			}
		}
	})
}
