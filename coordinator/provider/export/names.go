package export

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

// maxName is the longest name, in characters, that every deployment of every provider accepts.
const maxName = 64

// Name returns the provider's name for a tool. If the provider accepts the tool's own name,
// Name returns that name. Otherwise the result is the portable part of the name, "_", and the
// first eight hex digits of the name's SHA-256. It depends only on the arguments. All
// providers accept names that match ^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$.
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

// portable returns a character that every provider accepts: the character itself, or "_". The
// result is ASCII.
func portable(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
		return r
	}
	return '_'
}

// Names maps the names of known tools to a provider's names and back. A Names does not change.
type Names struct {
	provider messages.Provider
	tools    map[string]string // from the provider's name to the tool's
}

// NewNames returns the mapping of the given tools. It returns an error for an empty name, for
// a repeated name, and for two tools that the provider would know by one name.
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
			return Names{}, fmt.Errorf("tools %.80q and %.80q are both called %q on %s: rename one",
				min(tool, other), max(tool, other), wire, p)
		}
		n.tools[wire] = tool
	}
	return n, nil
}

// Tool returns the tool that a call of the provider names. The name must match exactly. ok is
// false if no known tool has this name for the provider.
func (n Names) Tool(wire string) (string, bool) {
	tool, ok := n.tools[wire]
	return tool, ok
}

// Wire returns the provider's name of a tool: see [Name].
func (n Names) Wire(tool string) string { return Name(n.provider, tool) }
