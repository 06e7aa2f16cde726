package sandbox

import (
	"slices"
	"strings"
)

// refusals are texts that programs print when the system refuses something to them. The texts
// from index firstOfNetwork on are about the network.
var refusals = []string{
	"ermission denied", "peration not permitted", "ead-only file system", "EACCES", "EPERM", "EROFS",
	"ame resolution", "ould not resolve", "etwork is unreachable",
}

const firstOfNetwork = 6

// Note returns a note for the model about what the sandbox allows, if the output of a failed
// command shows that something was refused. It returns "" if the sandbox was not the reason.
// refused lists what the proxy of the sandbox refused.
func (b *Box) Note(output string, refused ...string) string {
	if b == nil || len(refused) == 0 && !slices.ContainsFunc(refusals, func(words string) bool { return strings.Contains(output, words) }) {
		return ""
	}
	return b.note(refused)
}

// Hint is [Box.Note] for a command that succeeded. It is stricter, because such a command may
// print words of other programs: the output must name the refused path, and the sandbox must
// not allow that path.
func (b *Box) Hint(output string, refused ...string) string {
	if len(refused) == 0 && b.Wants("", output).String() == "" {
		return ""
	}
	return b.note(refused)
}

func (b *Box) note(refused []string) string {
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
	switch {
	case p.Network == HostNetwork:
	case b.Plan.Way == NoWay:
		note += ". It has no network"
	case p.Network == SomeHosts:
		note += ". It reaches only these hosts, through the HTTP proxy of $HTTPS_PROXY: " + strings.Join(p.Hosts, ", ")
	default:
		note += ". It reaches hosts only through the HTTP proxy of $HTTPS_PROXY"
	}
	if len(refused) > 0 {
		note += ". The proxy refused this: " + strings.Join(refused, "; ")
	}
	return note + ".]"
}
