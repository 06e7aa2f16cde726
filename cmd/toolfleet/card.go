package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// shortID is how many characters of an id are shown, usually enough to tell open questions apart.
// shortIDs lengthens them where it is not.
const shortID = 12

// short returns the first shortID characters of an id.
func short(id string) string { return clean(id[:min(len(id), shortID)], shortID) }

// card is the approval view: a question as a person reads it before deciding. It shows every
// argument, and spells out every character that is invisible or could pass for another.
func card(q messages.Approval, now time.Time, colour bool) string {
	paint := func(code, text string) string {
		if !colour {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s  %s\n\n", paint("1", word(q.Tool)), paint(tierColour(q.Tier), word(q.Tier)))
	for _, line := range argumentLines(q.Input) {
		out.WriteString("    " + line + "\n")
	}
	out.WriteByte('\n')
	p := q.Pending()
	fact := func(name, text string) {
		fmt.Fprintf(&out, "  %-10s %s\n", paint("2", fmt.Sprintf("%-10s", name)), text)
	}
	fact("approval", word(q.ID))
	fact("asked by", fmt.Sprintf("%s, session %s, batch %s, call %s", who(q.Requester), word(q.Session), word(q.Batch), word(q.CallID)))
	fact("because", ruled(q))
	fact("needs", needs(p))
	if len(p.Agreed) > 0 {
		fact("agreed", agreed(q))
	}
	if q.Original != nil {
		fact("edited", edited(q))
	}
	fact("expires", fmt.Sprintf("in %s, at %s", span(q.Expires.Sub(now)), q.Expires.UTC().Format(time.RFC3339)))
	fact("hash", word(q.ArgsHash))
	return out.String()
}

// shown returns the approval view of a question, wrapped to the width of the screen w.
func shown(w io.Writer, q messages.Approval) string {
	return wrapped(card(q, time.Now(), colours(w)), columns(w))
}

// wrapped breaks lines that are longer than the screen and marks each continuation. If the terminal
// broke them itself, an agent could choose arguments or a session name so that the rest of a line
// looks like a row of the approval view. A width of 0 breaks nothing.
func wrapped(text string, width int) string {
	const more = "  > "
	var out strings.Builder
	column, colour := 0, false
	for _, r := range text {
		wide := 1
		switch colour = colour || r == '\x1b'; {
		case colour:
			wide, colour = 0, r != 'm'
		case r >= 0x1100: // some of these are two columns wide; breaking too early is harmless
			wide = 2
		}
		switch {
		case r == '\n':
			column = -wide
		case width > 0 && column+wide > width:
			out.WriteString("\n" + more)
			column = len(more)
		}
		out.WriteRune(r)
		column += wide
	}
	return out.String()
}

// columns returns the width of a terminal in characters, 0 if it is unknown.
func columns(w any) int {
	width := 0
	if f, ok := w.(*os.File); ok {
		width, _, _ = term.GetSize(int(f.Fd()))
	}
	return width
}

// word makes an id from outside safe as part of a sentence, on one line.
func word[T ~string](id T) string { return strings.ReplaceAll(spelled(string(id)), "\n", `\u000a`) }

// who returns the name of a principal for a sentence; the only tenant of a fleet has no name.
func who(principal string) string {
	if principal == messages.OneTenant {
		return "the fleet's only tenant"
	}
	return word(principal)
}

// ruled returns the name of the rule that asks, and its reason.
func ruled(q messages.Approval) string {
	switch {
	case q.Reason == "":
		return word(q.Rule)
	case strings.Contains(q.Reason, q.Rule):
		return word(q.Reason)
	}
	return word(q.Rule) + ": " + word(q.Reason)
}

// needs says how many people must agree before a call may run, and whether a ticket is needed.
func needs(p messages.Pending) string {
	text := "1 person who agrees"
	if p.Approvers > 1 {
		text = fmt.Sprintf("%d people who agree", p.Approvers)
	}
	if p.Ticket {
		text += ", and a ticket"
	}
	return text
}

// agreed lists the people who agreed, with their edits and tickets.
func agreed(q messages.Approval) string {
	var people []string
	for _, d := range q.Decisions {
		text := word(d.By)
		if d.Verdict == messages.VerdictEdit {
			text += " (who edited it)"
		}
		if d.Ticket != "" {
			text += " (ticket " + word(d.Ticket) + ")"
		}
		people = append(people, text)
	}
	return strings.Join(people, ", ")
}

// edited shows the original arguments of an edited question. A question without decisions was asked
// anew because the rules ask about the edited arguments too: they have no agreement yet.
func edited(q messages.Approval) string {
	first := word(string(compact(q.Original.Input)))
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

// argumentLines returns the arguments sorted by name, each beginning on its own line; a nested
// value takes several.
func argumentLines(input json.RawMessage) []string {
	members, err := rawjson.Object(input)
	if err != nil {
		return []string{word(string(input))}
	}
	if len(members) == 0 {
		return []string{"(no arguments)"}
	}
	width := 0
	for name := range members {
		width = max(width, len([]rune(plainName(name))))
	}
	var lines []string
	for _, name := range rawjson.SortedKeys(members) {
		value := strings.Split(jsonText(members[name]), "\n")
		lines = append(lines, fmt.Sprintf("%-*s  %s", min(width, 24), plainName(name), value[0]))
		lines = append(lines, value[1:]...)
	}
	return lines
}

var wordLike = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// plainName returns the name of an argument as it is if it looks like a word, else as a JSON
// string.
func plainName(name string) string {
	if wordLike.MatchString(name) {
		return name
	}
	return jsonText(rawjson.Quote(name))
}

// jsonText renders a JSON value for a person, still as JSON: sorted keys, indentation, escapes for
// what is not printable.
func jsonText(raw json.RawMessage) string {
	canonical, err := rawjson.Canonical(raw)
	if err != nil {
		return word(string(raw))
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, canonical, "", "  "); err != nil {
		return word(string(raw))
	}
	return spelled(indented.String())
}

// spelled returns a text in which every character is visible for what it is. The others become JSON
// escapes.
func spelled(text string) string {
	var out strings.Builder
	marks := mostMarks
	for _, r := range text {
		switch {
		case unicode.IsMark(r):
			marks++
		case unicode.IsLetter(r):
			marks = 0
		default:
			marks = mostMarks
		}
		if r == '\n' || marks <= mostMarks && unicode.IsPrint(r) && !unicode.In(r, unseen...) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}

// mostMarks is how many combining marks a letter may carry. More would cover the text around it.
const mostMarks = 3

// unseen are characters that count as printable but leave nothing to see, or that change the
// direction of the text.
var unseen = []*unicode.RangeTable{unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, unicode.Bidi_Control}

// compact returns a JSON value on one line with sorted keys, or the input itself if it is not
// valid.
func compact(raw json.RawMessage) []byte {
	canonical, err := rawjson.Canonical(raw)
	if err != nil {
		return raw
	}
	return canonical
}

// checked verifies that the arguments of a question match their hash and that its id matches the
// whole, and recomputes the one-line summary. So the person sees exactly what the signature will
// cover, regardless of who sent the question.
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

// difference returns a line diff of two texts. A line begins with "- " if it was removed, "+ " if
// it was added, and two spaces if it is in both.
func difference(before, after string, colour bool) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	paint := func(code, text string) string {
		if !colour {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	var out strings.Builder
	i, j := 0, 0
	for _, match := range append(common(a, b), [2]int{len(a), len(b)}) {
		for ; i < match[0]; i++ {
			fmt.Fprintln(&out, paint("31", "- "+a[i]))
		}
		for ; j < match[1]; j++ {
			fmt.Fprintln(&out, paint("32", "+ "+b[j]))
		}
		if i < len(a) && j < len(b) {
			fmt.Fprintln(&out, "  "+a[i])
			i, j = i+1, j+1
		}
	}
	return out.String()
}

// common returns the longest common subsequence of two lists of lines, as pairs of indices. If what
// follows the common beginning would need a table of more than 4Mi cells, it returns only that
// beginning.
func common(a, b []string) (pairs [][2]int) {
	start := 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		pairs = append(pairs, [2]int{start, start})
		start++
	}
	if (len(a)-start)*(len(b)-start) > 4<<20 {
		return pairs
	}
	longest := make([][]int, len(a)+1) // longest[i][j] is the length for a[i:] and b[j:]
	for i := range longest {
		longest[i] = make([]int, len(b)+1)
	}
	for i := range slices.Backward(a[start:]) {
		for j := range slices.Backward(b[start:]) {
			i, j := i+start, j+start
			if longest[i][j] = max(longest[i+1][j], longest[i][j+1]); a[i] == b[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			}
		}
	}
	for i, j := start, start; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			pairs = append(pairs, [2]int{i, j})
			i, j = i+1, j+1
		case longest[i+1][j] >= longest[i][j+1]:
			i++
		default:
			j++
		}
	}
	return pairs
}
