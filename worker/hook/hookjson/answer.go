package hookjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// MaxAnswer is the size limit of an answer, in bytes. A longer answer is an error.
const MaxAnswer = 4 << 20

// Answer is what a hook answers, before or after the tool. The zero value changes nothing.
type Answer struct {
	opinion    hook.Opinion
	reason     string
	input      json.RawMessage
	output     json.RawMessage
	content    []messages.Block
	stop       bool
	stopReason string
	context    string
}

// Words returns the answer of a gate that gave only a reason. Before the tool, the answer is a
// deny. After the tool, the reason is text for the model.
func (q Request) Words(reason string) Answer {
	if q.Event == PreToolUse {
		return Answer{opinion: hook.Deny, reason: reason}
	}
	return Answer{context: reason}
}

// Read parses an answer. An answer of blanks only changes nothing. Any other answer is a
// JSON object:
//
//	{
//	  any of these; systemMessage and suppressOutput are ignored:
//	    "continue": false, "stopReason": "...", "systemMessage": "...", "suppressOutput": true,
//	  if given, it has to be the id of this call:
//	    "tool_use_id": "...",
//	  the older form:
//	    "decision": "approve" | "block", "reason": "...",
//	  "hookSpecificOutput": {
//	    "hookEventName": "PreToolUse",
//	    before the tool:
//	      "permissionDecision": "allow" | "deny" | "ask", "permissionDecisionReason": "...",
//	      "updatedInput": {...},
//	    after the tool:
//	      "updatedToolOutput": any, "updatedMCPToolOutput": any,
//	    "additionalContext": "..."}}
//
// An unknown key or value is refused, because it might be a misspelt opinion. Every error
// is a [hook.Fault] with the cause [hook.BadAnswer]. It quotes nothing of the answer: see
// [LogQuote].
func (q Request) Read(raw []byte) (Answer, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return Answer{}, nil
	}
	if _, err := rawjson.Object(raw); err != nil {
		return Answer{}, Invalid(fmt.Errorf("it answered with something that is no JSON object: %w", cmp.Or(check(raw), err)))
	}
	a, err := q.read(raw)
	if err != nil {
		return Answer{}, Invalid(fmt.Errorf("its answer cannot be used: %w", err))
	}
	return a, nil
}

// Invalid returns the fault of a hook whose answer cannot be used.
func Invalid(err error) error { return &hook.Fault{Cause: hook.BadAnswer, Err: err} }

// LogQuote logs, at level debug, the part of an answer that [Request.Read] refused. Answers
// may hold secrets, and more people can read the lines of other levels.
func LogQuote(log *slog.Logger, err error) {
	if invalid := new(invalidAnswer); errors.As(err, &invalid) {
		log.Debug("the answer of a hook holds an unknown field or value", "wrong", invalid.problem,
			"said", fmt.Sprintf("%.80s", invalid.quote))
	}
}

func (q Request) read(raw []byte) (Answer, error) {
	if err := check(raw); err != nil {
		return Answer{}, err
	}
	top, err := open("", raw)
	if err != nil {
		return Answer{}, err
	}
	var a Answer
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

// readSpecific reads the part of an answer that depends on the event.
func (q Request) readSpecific(raw json.RawMessage, a *Answer) error {
	m, err := open("hookSpecificOutput.", raw)
	if err != nil {
		return err
	}
	event := string(q.Event)
	m.take("hookEventName", &event)
	if strings.TrimSuffix(event, "Failure") != strings.TrimSuffix(string(q.Event), "Failure") {
		m.fail(&invalidAnswer{"hookEventName: asked was " + string(q.Event), event})
	}
	m.take("additionalContext", &a.context)
	if q.Event != PreToolUse {
		q.replace(a, m.value("updatedMCPToolOutput"), true)
		q.replace(a, m.value("updatedToolOutput"), false)
		return m.end()
	}
	a.opinion = hook.Opinion(m.choice("permissionDecision", string(hook.Allow), string(hook.Deny), string(hook.Ask)))
	m.take("permissionDecisionReason", &a.reason)
	if a.input = m.value("updatedInput"); a.input != nil {
		if _, err := rawjson.Object(a.input); err != nil {
			m.fail(fmt.Errorf("updatedInput: %w", err))
		}
	}
	return m.end()
}

// decide merges the older form into the answer. Before the tool, the older form is an opinion,
// and the stricter of the two forms counts. After the tool, its reason becomes context for the
// model.
func (q Request) decide(a *Answer, decision, reason string) {
	switch {
	case decision == "" && q.Event == PreToolUse:
		if a.reason == "" {
			a.reason = reason
		}
	case decision == "" || decision == "approve" && q.Event != PreToolUse:
	case decision == "approve":
		if a.opinion == hook.None {
			a.opinion, a.reason = hook.Allow, reason
		}
	case q.Event != PreToolUse:
		a.context = strings.Trim(reason+"\n"+a.context, "\n")
	case a.opinion != hook.Deny:
		a.opinion, a.reason = hook.Deny, reason
	}
}

// replace sets the output that replaces the tool's. An array of blocks becomes content if
// the tool's output was content blocks, or if the answer has the form for MCP tools.
func (q Request) replace(a *Answer, raw json.RawMessage, mcp bool) {
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

// blocks parses a list of content blocks. ok is false for an empty list or an unknown type of
// block.
func blocks(raw json.RawMessage) ([]messages.Block, bool) {
	var list []messages.Block
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return nil, false
	}
	known := []string{"text", "image", "audio", "resource", "resource_link"}
	return list, !slices.ContainsFunc(list, func(b messages.Block) bool { return !slices.Contains(known, b.Type) })
}

// invalidAnswer is an error in an answer. Its text does not quote the answer, because
// answers may hold secrets and many people can read the log.
type invalidAnswer struct{ problem, quote string }

func (m *invalidAnswer) Error() string { return m.problem }

// check is like [rawjson.Check], but its error does not quote the answer.
func check(stdout []byte) error {
	err := rawjson.Check(stdout)
	if err != nil && strings.HasPrefix(err.Error(), "key ") {
		return &invalidAnswer{"a key appears twice in one object", err.Error()}
	}
	return err
}

// members is an object that is read member by member. It keeps the first error.
type members struct {
	where string
	rest  map[string]json.RawMessage
	err   error
}

func open(where string, raw json.RawMessage) (*members, error) {
	left, err := rawjson.Object(raw)
	if err != nil {
		return nil, fmt.Errorf("%s%w", where, err)
	}
	return &members{where: where, rest: left}, nil
}

// value removes and returns a member, or returns nil if it is missing or null.
func (m *members) value(name string) json.RawMessage {
	raw := m.rest[name]
	delete(m.rest, name)
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// take reads a member into a string or a bool. It leaves the target unchanged if the member is
// missing.
func (m *members) take(name string, into any) {
	if raw := m.value(name); raw != nil && json.Unmarshal(raw, into) != nil {
		m.fail(fmt.Errorf("%s is %s", name, rawjson.TypeOf(raw)))
	}
}

// choice returns a member that must be one of the words, or "" if it is missing. An empty
// string is an error, because a script with a mistake may have meant a deny.
func (m *members) choice(name string, words ...string) (word string) {
	if raw := m.value(name); raw != nil && json.Unmarshal(raw, &word) != nil {
		m.fail(fmt.Errorf("%s is %s", name, rawjson.TypeOf(raw)))
	} else if raw != nil && !slices.Contains(words, word) {
		last := len(words) - 1
		m.fail(&invalidAnswer{fmt.Sprintf("%s: want %s or %s", name, strings.Join(words[:last], ", "), words[last]), word})
	}
	return word
}

func (m *members) fail(err error) {
	if m.err == nil && err != nil {
		m.err = fmt.Errorf("%s%w", m.where, err)
	}
}

// end returns the first error. A member that was not read counts as an error.
func (m *members) end() error {
	if len(m.rest) > 0 && m.err == nil {
		what := "a key is not known here"
		if of, inner := strings.CutSuffix(m.where, "."); inner {
			what = "a key of " + of + " is not known here"
		}
		m.err = &invalidAnswer{what, slices.Min(slices.Collect(maps.Keys(m.rest)))}
	}
	return m.err
}
