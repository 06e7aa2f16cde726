package export

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

// maxName is the longest name that every deployment of every provider takes, in characters.
const maxName = 64

// Name is what a provider is told a tool is called: the name itself where the provider takes it, else
// what can be kept of it, "_" and eight hex digits of its SHA-256. It depends on nothing but its
// arguments. A name that the providers agree on is ^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$.
func Name(p messages.Provider, name string) string {
	d, ok := dialects[p]
	if !ok || name == "" || d.names.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := "_" + hex.EncodeToString(sum[:4])
	stem := strings.Map(portable, name)
	if first := stem[0]; first == '-' || '0' <= first && first <= '9' {
		stem = "_" + stem
	}
	return stem[:min(len(stem), maxName-len(hash))] + hash
}

// portable keeps the characters that every provider takes. The result is ASCII.
func portable(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
		return r
	}
	return '_'
}

// Names maps the names of known tools to a provider's and back. It is a value: nobody changes it.
type Names struct {
	provider messages.Provider
	tools    map[string]string // the provider's name to the tool's
}

// NewNames knows the given tools. An empty name, a name that comes twice, and two names that would be
// told the provider as one are errors.
func NewNames(p messages.Provider, tools ...string) (Names, error) {
	n := Names{p, make(map[string]string, len(tools))}
	for _, tool := range tools {
		if tool == "" {
			return Names{}, fmt.Errorf("a tool without a name")
		}
		wire := Name(p, tool)
		other, taken := n.tools[wire]
		switch {
		case taken && other == tool:
			return Names{}, fmt.Errorf("tool %.80q is defined twice", tool)
		case taken:
			return Names{}, fmt.Errorf("tools %.80q and %.80q are both called %q on %s: rename one", min(tool, other), max(tool, other), wire, p)
		}
		n.tools[wire] = tool
	}
	return n, nil
}

// Tool is the tool that a provider's call names, exactly. False: no known tool is called so there.
func (n Names) Tool(wire string) (string, bool) {
	tool, ok := n.tools[wire]
	return tool, ok
}

// Wire is the provider's name of a tool: see [Name].
func (n Names) Wire(tool string) string { return Name(n.provider, tool) }
