package sandbox

import (
	"slices"
	"strings"
)

// refusals are what programs print when the system refuses something to them. The words from
// firstOfNetwork on are about the network.
var refusals = []string{
	"ermission denied", "peration not permitted", "ead-only file system", "EACCES", "EPERM", "EROFS",
	"ame resolution", "ould not resolve", "etwork is unreachable",
}

const firstOfNetwork = 6

// Note returns a note for the model about what the sandbox allows, if the output of a failed
// command shows that something was refused. "": the sandbox was not the reason.
func (b *Box) Note(output string) string {
	if b == nil || !slices.ContainsFunc(refusals, func(words string) bool { return strings.Contains(output, words) }) {
		return ""
	}
	return b.note()
}

// Hint is Note for a command that succeeded. It is stricter, since such a command may print other
// programs' words: the output must name the refused path, and the sandbox must not allow that path.
func (b *Box) Hint(output string) string {
	if b.Wants("", output).String() == "" {
		return ""
	}
	return b.note()
}

func (b *Box) note() string {
	p := b.Policy
	folders := slices.Clone(p.Write)
	if p.Temp != "" {
		folders = append(folders, "$TMPDIR")
	}
	note := "[This ran in a sandbox"
	if len(folders) > 0 {
		note += ", which lets it change only " + strings.Join(folders, ", ")
	}
	if len(p.Write) > 0 && len(p.Protect) > 0 && b.Plan.Spaces.Mount {
		note += " (but not .git/config, .git/hooks and other files that run commands)"
	}
	if p.Network != HostNetwork {
		note += ". It has no network"
	}
	return note + ".]"
}
