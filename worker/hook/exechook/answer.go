package exechook

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// answer is what a program said, whenever it was asked.
type answer struct {
	opinion    hook.Opinion
	reason     string
	input      json.RawMessage
	output     json.RawMessage
	content    []messages.Block
	stop       bool
	stopReason string
	context    string
}

// read takes the words of a program that has ended with 0:
//
//	{"continue": false, "stopReason": "...", "systemMessage": "...", "suppressOutput": true,    any of them; the last two mean nothing here
//	 "tool_use_id": "...",                                                                      if given, the one that was asked about
//	 "decision": "approve" | "block", "reason": "...",                                          the older form
//	 "hookSpecificOutput": {"hookEventName": "PreToolUse",
//	    "permissionDecision": "allow" | "deny" | "ask", "permissionDecisionReason": "...",      before the tool
//	    "updatedInput": {...},
//	    "updatedToolOutput": any, "updatedMCPToolOutput": any,                                  after it
//	    "additionalContext": "..."}}
//
// A word that is not known is refused: what looks like no opinion might be a misspelt one.
func (q request) read(stdout []byte) (answer, error) {
	if err := check(stdout); err != nil {
		return answer{}, err
	}
	top, err := open("", stdout)
	if err != nil {
		return answer{}, err
	}
	var a answer
	goOn, id := true, string(q.CallID)
	var reason, ignoredText string
	var ignoredFlag bool
	top.take("continue", &goOn)
	top.take("stopReason", &a.stopReason)
	top.take("systemMessage", &ignoredText)
	top.take("suppressOutput", &ignoredFlag)
	top.take("tool_use_id", &id)
	decision := top.choice("decision", "approve", "block")
	top.take("reason", &reason)
	if specific := top.value("hookSpecificOutput"); specific != nil {
		top.fail(q.readSpecific(specific, &a))
	}
	if id != string(q.CallID) {
		top.fail(errors.New("it is about another call"))
	}
	a.stop = !goOn
	q.decide(&a, decision, reason)
	return a, top.end()
}

// readSpecific takes the part of an answer that depends on the event.
func (q request) readSpecific(raw json.RawMessage, a *answer) error {
	m, err := open("hookSpecificOutput.", raw)
	if err != nil {
		return err
	}
	event := string(q.Event)
	m.take("hookEventName", &event)
	if strings.TrimSuffix(event, "Failure") != strings.TrimSuffix(string(q.Event), "Failure") {
		m.fail(&misfit{"hookEventName: asked was " + string(q.Event), event})
	}
	m.take("additionalContext", &a.context)
	if q.Event != preToolUse {
		q.replace(a, m.value("updatedMCPToolOutput"), true)
		q.replace(a, m.value("updatedToolOutput"), false)
		return m.end()
	}
	a.opinion = hook.Opinion(m.choice("permissionDecision", string(hook.Allow), string(hook.Deny), string(hook.Ask)))
	m.take("permissionDecisionReason", &a.reason)
	if a.input = m.value("updatedInput"); a.input != nil {
		if _, err := messages.Object(a.input); err != nil {
			m.fail(fmt.Errorf("updatedInput: %w", err))
		}
	}
	return m.end()
}

// decide puts the older form in its place: before the tool it is an opinion, of two the stricter; after it, words for
// the model.
func (q request) decide(a *answer, decision, reason string) {
	switch {
	case decision == "" && q.Event == preToolUse:
		if a.reason == "" {
			a.reason = reason
		}
	case decision == "" || decision == "approve" && q.Event != preToolUse:
	case decision == "approve":
		if a.opinion == hook.None {
			a.opinion, a.reason = hook.Allow, reason
		}
	case q.Event != preToolUse:
		a.context = strings.Trim(reason+"\n"+a.context, "\n")
	case a.opinion != hook.Deny:
		a.opinion, a.reason = hook.Deny, reason
	}
}

// replace takes an output in place of the tool's. Where that was content blocks, or the answer is for a tool of MCP,
// an array of blocks is content again.
func (q request) replace(a *answer, raw json.RawMessage, mcp bool) {
	if raw == nil {
		return
	}
	a.output, a.content = raw, nil
	var result struct {
		Content json.RawMessage `json:"content"`
	}
	if mcp && json.Unmarshal(raw, &result) == nil && result.Content != nil {
		raw = result.Content
	}
	if list, ok := blocks(raw); ok && (mcp || q.hadBlocks) {
		a.output, a.content = nil, list
	}
}

// blocks reads content blocks, at least one.
func blocks(raw json.RawMessage) ([]messages.Block, bool) {
	var list []messages.Block
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return nil, false
	}
	known := []string{"text", "image", "audio", "resource", "resource_link"}
	return list, !slices.ContainsFunc(list, func(b messages.Block) bool { return !slices.Contains(known, b.Type) })
}

// misfit is something wrong with an answer. What the program said is not in its text: the log has that for everybody, and
// programs say secrets.
type misfit struct{ what, said string }

func (m *misfit) Error() string { return m.what }

// check is [messages.Check] without the words of the program.
func check(stdout []byte) error {
	err := messages.Check(stdout)
	if err != nil && strings.HasPrefix(err.Error(), "key ") {
		return &misfit{"a key appears twice in one object", err.Error()}
	}
	return err
}

// members is an object that is read member by member. It keeps the first thing that is wrong.
type members struct {
	where string
	left  map[string]json.RawMessage
	err   error
}

func open(where string, raw json.RawMessage) (*members, error) {
	left, err := messages.Object(raw)
	if err != nil {
		return nil, fmt.Errorf("%s%w", where, err)
	}
	return &members{where: where, left: left}, nil
}

// value is a member, nil where it is absent or null.
func (m *members) value(name string) json.RawMessage {
	raw := m.left[name]
	delete(m.left, name)
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// take reads a member into a string or a bool, and leaves that alone where there is none.
func (m *members) take(name string, into any) {
	if raw := m.value(name); raw != nil && json.Unmarshal(raw, into) != nil {
		m.fail(fmt.Errorf("%s is %s", name, messages.TypeOf(raw)))
	}
}

// choice is a member that is one of these words, "" where there is none. An empty text is none of them: it may be what a
// script has made of a deny.
func (m *members) choice(name string, words ...string) (word string) {
	if raw := m.value(name); raw != nil && json.Unmarshal(raw, &word) != nil {
		m.fail(fmt.Errorf("%s is %s", name, messages.TypeOf(raw)))
	} else if raw != nil && !slices.Contains(words, word) {
		last := len(words) - 1
		m.fail(&misfit{fmt.Sprintf("%s: want %s or %s", name, strings.Join(words[:last], ", "), words[last]), word})
	}
	return word
}

func (m *members) fail(err error) {
	if m.err == nil && err != nil {
		m.err = fmt.Errorf("%s%w", m.where, err)
	}
}

// end says what was wrong, members that nobody has asked for included.
func (m *members) end() error {
	if len(m.left) > 0 && m.err == nil {
		what := "a key is not known here"
		if of, inner := strings.CutSuffix(m.where, "."); inner {
			what = "a key of " + of + " is not known here"
		}
		m.err = &misfit{what, slices.Min(slices.Collect(maps.Keys(m.left)))}
	}
	return m.err
}
