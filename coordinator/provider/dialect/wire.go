// Package dialect has code that the provider codecs share. It reads a provider's message
// strictly. It brings the outcomes of calls into a form that every dialect can write.
//
//	message  -> Read -> Node, Node.Get, ...  -> Reader.Calls    the codec's Decode
//	outcomes -> Answers -> Answer.Parts, ... -> rawjson.Marshal  the codec's Encode
//
// Strings stay exact: [Unquote] and [Quote] keep lone surrogates, which encoding/json would
// replace. The package never parses numbers, so their digits stay too.
//
// The package knows no dialect. A codec says what a call is, and what an answer looks like.
package dialect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Reader reads one message of a provider and collects its calls. Its refusal is about the
// first mistake that it finds. After a mistake, every further value that it reads is empty. So
// a codec can read on without checks, and ask for the refusal at the end.
type Reader struct {
	refusal *messages.Refusal
	calls   []messages.ToolCall
	paths   map[messages.CallID]string // by id: where in the message its call is, for refusals
}

// Node is a value of the message with its path. A refusal shows the path.
type Node struct {
	reader  *Reader
	path    string
	raw     json.RawMessage // nil when the value is missing
	members map[string]json.RawMessage
}

// Read starts to read a message that was not checked before. The message must be JSON. The
// limits of [rawjson.Check] apply only to values that the codec reads. So an input over a
// limit fails only its own call, and a value that no codec reads does no harm.
func Read(message json.RawMessage) (*Reader, *Node) {
	r := &Reader{paths: map[messages.CallID]string{}}
	root := &Node{reader: r, raw: bytes.TrimSpace(message)}
	if err := rawjson.CheckSyntax(message); err != nil {
		root.Refuse("%v", err)
	}
	return r, root
}

// Calls returns the calls that were added, or the *messages.Refusal as an error.
func (r *Reader) Calls() ([]messages.ToolCall, error) {
	if r.refusal != nil {
		return nil, r.refusal
	}
	return r.calls, nil
}

// Add adds a call that is at n in the message. A repeated id makes Add refuse the whole
// message, because an answer could not say which of the two calls it is for. Only the empty
// id, which some dialects allow, may be repeated.
func (r *Reader) Add(n *Node, call messages.ToolCall) {
	if first, twice := r.paths[call.ID]; twice && call.ID != "" {
		n.RefuseAs(messages.ClassDuplicateID, "has the id %.80q of %s", call.ID, first)
	}
	if len(r.calls) == messages.MaxCalls {
		n.RefuseAs(messages.ClassTooLarge, "is call %d of the message; the limit is %d", len(r.calls)+1, messages.MaxCalls)
	}
	if r.refusal != nil {
		return
	}
	r.paths[call.ID] = n.where()
	call.Index = len(r.calls)
	r.calls = append(r.calls, call)
}

// Refuse refuses the message because it does not have the provider's form.
func (n *Node) Refuse(format string, args ...any) {
	n.RefuseAs(messages.ClassMalformedMessage, format, args...)
}

// RefuseAs is like Refuse, with another class. Only the first refusal of a message counts.
func (n *Node) RefuseAs(class messages.Class, format string, args ...any) {
	if n.reader.refusal == nil {
		n.reader.refusal = &messages.Refusal{Class: class, Message: n.where() + ": " + fmt.Sprintf(format, args...)}
	}
}

func (n *Node) where() string {
	if n.path == "" {
		return "message"
	}
	return n.path
}

// None reports whether the value is missing or null. In every dialect, both mean "not set".
func (n *Node) None() bool { return n.raw == nil || rawjson.TypeOf(n.raw) == "null" }

// Is reports whether the value has this type, in the words of [rawjson.TypeOf].
func (n *Node) Is(typeName string) bool { return n.raw != nil && rawjson.TypeOf(n.raw) == typeName }

// Raw returns the bytes of the value. It returns nil for a missing value or null.
func (n *Node) Raw() json.RawMessage {
	if n.None() {
		return nil
	}
	return n.raw
}

// Bounded returns the node. It refuses the message if the value is over the limits of
// [rawjson.Check]. Use it for values that are passed on unchanged.
func (n *Node) Bounded() *Node {
	if n.reader.refusal == nil && n.raw != nil {
		if err := rawjson.Check(n.raw); err != nil {
			n.Refuse("%v", err)
		}
	}
	return n
}

// Bytes returns the bytes of the value, also for null. It returns nil for a missing value.
func (n *Node) Bytes() json.RawMessage { return n.raw }

// Get returns a member of the node's value. It refuses the message if the value is not an
// object.
func (n *Node) Get(name string) *Node {
	if n.members == nil && n.reader.refusal == nil {
		members, err := rawjson.Members(n.raw)
		if err != nil {
			n.Refuse("%v", err)
		}
		n.members = members
	}
	path := name
	if n.path != "" {
		path = n.path + "." + name
	}
	return &Node{reader: n.reader, path: path, raw: n.members[name]}
}

// List returns the elements of the node's value. It refuses the message if the value is not an
// array.
func (n *Node) List() []*Node {
	if n.reader.refusal != nil {
		return nil
	}
	if !n.Is("an array") {
		n.Refuse("want an array, got %s", rawjson.TypeOf(n.raw))
		return nil
	}
	elements := rawjson.Elements(n.raw)
	nodes := make([]*Node, len(elements))
	for i, raw := range elements {
		nodes[i] = &Node{reader: n.reader, path: fmt.Sprintf("%s[%d]", n.where(), i), raw: raw}
	}
	return nodes
}

// First returns the first element of the node's value. It refuses the message if the value is
// not an array or is empty.
func (n *Node) First() *Node {
	if list := n.List(); len(list) > 0 {
		return list[0]
	}
	n.Refuse("is empty")
	return &Node{reader: n.reader, path: n.where() + "[0]"}
}

// Text returns the node's value. It refuses the message if the value is not a string.
func (n *Node) Text() string {
	if n.reader.refusal != nil {
		return ""
	}
	if !n.Is("a string") {
		n.Refuse("want a string, got %s", rawjson.TypeOf(n.raw))
		return ""
	}
	if !utf8.Valid(n.raw) {
		n.Refuse("not valid UTF-8")
		return ""
	}
	return Unquote(n.raw)
}

// TextOr is like [Node.Text], but returns otherwise for a missing value or null.
func (n *Node) TextOr(otherwise string) string {
	if n.None() {
		return otherwise
	}
	return n.Text()
}

// ID returns the node's value as a call id. It refuses the message if the value is not a
// string or is empty.
func (n *Node) ID() messages.CallID {
	id := messages.CallID(n.TextOr(""))
	if id == "" {
		n.RefuseAs(messages.ClassMissingID, "is missing or empty: a call without an id cannot be answered")
	}
	return id
}

// Role refuses a message whose role is not want, the role of the model.
func (n *Node) Role(want string) {
	if role := n.Get("role"); role.TextOr(want) != want {
		role.Refuse("want %q, got %.40q", want, role.Text())
	}
}

// Foreign refuses a message that has one of these members: they hold the calls of another
// dialect. Without the refusal, such a message would count as one without calls, and the agent
// would wait for ever.
func (n *Node) Foreign(members ...string) {
	for _, name := range members {
		if m := n.Get(name); !m.None() {
			m.Refuse("is no member of this provider's messages; is the provider right?")
		}
	}
}

// callTypes lists the types of blocks and items that are calls in some dialect.
var callTypes = []string{"tool_use", "function_call", "custom_tool_call", "tool_call", "function"}

// ForeignType refuses a block whose type is a call in some other dialect. A codec calls it for
// block types that it does not run itself.
func (n *Node) ForeignType(blockType string) {
	if slices.Contains(callTypes, blockType) {
		n.Refuse("%q is no type of this provider's messages; is the provider right?", blockType)
	}
}

// Object returns the arguments, which must be a JSON object. If they are not, it returns a
// problem as text for the model. A missing value, null and blank text mean that there are no
// arguments.
func (n *Node) Object() (input []byte, problem string) {
	switch {
	case n.None(), n.Is("a string") && strings.TrimSpace(Unquote(n.raw)) == "":
		return []byte("{}"), ""
	case n.Is("an object"):
		if err := rawjson.Check(n.raw); err != nil {
			return nil, notTaken(err)
		}
		return n.raw, ""
	}
	return nil, notAnObject(n.raw)
}

// Arguments is like [Node.Object], but it also reads an object inside a string, as the OpenAI
// dialects have it.
func (n *Node) Arguments() (input []byte, problem string) {
	if input, problem = n.Object(); problem != "" && n.Is("a string") {
		return parseArguments(Unquote(n.raw))
	}
	return input, problem
}

// FreeText returns the input of a custom call: its text unchanged, under the single key
// "input".
func (n *Node) FreeText() (input []byte, problem string) {
	switch {
	case n.None():
		return []byte(`{"input":""}`), ""
	case !n.Is("a string"):
		return nil, fmt.Sprintf("The input of this tool is free text, but %s was sent.", rawjson.TypeOf(n.raw))
	case !utf8.Valid(n.raw):
		return nil, "The input of this tool is free text, and what was sent is not valid UTF-8."
	}
	return slices.Concat([]byte(`{"input":`), n.raw, []byte("}")), ""
}
