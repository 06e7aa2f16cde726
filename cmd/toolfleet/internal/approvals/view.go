package approvals

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// approvalView returns a question as a person reads it before deciding. It shows every
// argument, and escapes every character that is invisible or looks like another.
func approvalView(q messages.Approval, now time.Time, colour bool) string {
	paint := func(code, text string) string {
		if !colour {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s  %s\n\n", paint("1", terminal.Escape(q.Tool)), paint(tierColour(q.Tier), terminal.Escape(q.Tier)))
	for _, line := range argumentLines(q.Input) {
		out.WriteString("    " + line + "\n")
	}
	out.WriteByte('\n')
	p := q.Pending()
	fact := func(name, text string) {
		fmt.Fprintf(&out, "  %-10s %s\n", paint("2", fmt.Sprintf("%-10s", name)), text)
	}
	fact("approval", terminal.Escape(q.ID))
	fact("asked by", fmt.Sprintf("%s, session %s, batch %s, call %s", asker(q), terminal.Escape(q.Session), terminal.Escape(q.Batch), terminal.Escape(q.CallID)))
	if len(q.Labels) > 0 {
		fact("labels", labels(q))
	}
	fact("because", ruled(q))
	fact("needs", Needs(p))
	if len(p.Agreed) > 0 {
		fact("agreed", agreed(q))
	}
	if q.Original != nil {
		fact("edited", edited(q))
	}
	fact("expires", fmt.Sprintf("in %s, at %s", terminal.Span(q.Expires.Sub(now)), q.Expires.UTC().Format(time.RFC3339)))
	fact("hash", terminal.Escape(q.ArgsHash))
	return out.String()
}

// asker returns the user who asks, if one is known, and the tenant.
func asker(q messages.Approval) string {
	if q.User == "" {
		return who(q.Requester)
	}
	return terminal.Escape(q.User) + " of " + who(q.Requester)
}

// labels returns the labels of the batch, by name.
func labels(q messages.Approval) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(q.Labels)) {
		all = append(all, terminal.Escape(name)+"="+terminal.Escape(q.Labels[name]))
	}
	return strings.Join(all, " ")
}

// shown returns the approval view of a question, wrapped to the width of the screen w.
func shown(w io.Writer, q messages.Approval) string {
	return terminal.Wrap(approvalView(q, time.Now(), terminal.Colours(w)), terminal.Columns(w))
}

// who returns the name of a principal for a sentence; the only tenant of a fleet has no name.
func who(principal string) string {
	if principal == messages.OneTenant {
		return "the fleet's only tenant"
	}
	return terminal.Escape(principal)
}

// ruled returns the name of the rule that asks, and its reason.
func ruled(q messages.Approval) string {
	switch {
	case q.Reason == "":
		return terminal.Escape(q.Rule)
	case strings.Contains(q.Reason, q.Rule):
		return terminal.Escape(q.Reason)
	}
	return terminal.Escape(q.Rule) + ": " + terminal.Escape(q.Reason)
}

// Needs says how many people must agree before a call may run, and whether a ticket is needed.
func Needs(p messages.Pending) string {
	text := "1 person who agrees"
	if p.Approvers > 1 {
		text = fmt.Sprintf("%d people who agree", p.Approvers)
	}
	if p.Ticket {
		text += ", and a ticket"
	}
	return text
}

// agreed lists the people who approved, with their edits and tickets.
func agreed(q messages.Approval) string {
	var people []string
	for _, d := range q.Decisions {
		text := terminal.Escape(d.By)
		if d.Verdict == messages.VerdictEdit {
			text += " (who edited it)"
		}
		if d.Ticket != "" {
			text += " (ticket " + terminal.Escape(d.Ticket) + ")"
		}
		people = append(people, text)
	}
	return strings.Join(people, ", ")
}

// edited shows the original arguments of an edited question. If the rules also ask about the
// edited arguments, a new question without decisions was asked about them.
func edited(q messages.Approval) string {
	first := terminal.Escape(string(compact(q.Original.Input)))
	if len(q.Decisions) == 0 {
		return "by a person, and these arguments have to be agreed to anew. What was asked at first: " + first
	}
	return "what was asked at first: " + first
}

func tierColour(t messages.Tier) string {
	switch t {
	case messages.TierCritical:
		return "1;31"
	case messages.TierHigh:
		return "33"
	}
	return "36"
}

// argumentLines returns the arguments sorted by name, each on a new line; a nested value takes
// several lines.
func argumentLines(input json.RawMessage) []string {
	members, err := rawjson.Object(input)
	if err != nil {
		return []string{terminal.Escape(string(input))}
	}
	if len(members) == 0 {
		return []string{"(no arguments)"}
	}
	width := 0
	for name := range members {
		width = max(width, len([]rune(terminal.ArgumentName(name))))
	}
	var lines []string
	for _, name := range rawjson.SortedKeys(members) {
		value := strings.Split(terminal.JSONText(members[name]), "\n")
		lines = append(lines, fmt.Sprintf("%-*s  %s", min(width, 24), terminal.ArgumentName(name), value[0]))
		lines = append(lines, value[1:]...)
	}
	return lines
}

// checked verifies that the arguments of a question match their hash and that the question
// matches its id. It also computes the one-line summary again. So the person sees exactly what
// the signature will cover, even if the question comes from a false sender.
func checked(q messages.Approval) (messages.Approval, error) {
	if err := rawjson.Check(q.Input); err != nil {
		return q, fmt.Errorf("the arguments cannot be shown: %w", err)
	}
	canonical, err := rawjson.Canonical(q.Input)
	if err != nil {
		return q, fmt.Errorf("the arguments cannot be shown: %w", err)
	}
	if messages.Digest(canonical) != q.ArgsHash || approval.ID(q) != q.ID {
		return q, fmt.Errorf("the question does not fit its own id, so it is not one that may be answered: tell whoever runs the fleet")
	}
	q.Line = approval.Line(q.Tool, q.Input)
	return q, nil
}
