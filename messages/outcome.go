package messages

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Outcome is what the model reads about a call: an output, content blocks, or an error. If it has
// none of the three, the result was lost, and codecs answer the call with an error that says so.
type Outcome struct {
	// Output is any JSON value; a string is text and stays text even when it looks like JSON.
	Output  json.RawMessage `json:"output,omitempty"`
	Content []Block         `json:"content,omitempty"`
	// IsError says that Content describes a failure.
	IsError bool   `json:"is_error,omitempty"`
	Err     *Error `json:"error,omitempty"`
	// Details is any JSON value for user interfaces. No codec shows it to a model.
	Details json.RawMessage `json:"details,omitempty"`
}

// Block is one piece of content as MCP defines it. Codecs translate the types that they know, and
// replace any other by a short note.
type Block struct {
	Type     string    `json:"type"` // text, image, audio, resource, resource_link
	Text     string    `json:"text,omitempty"`
	Data     string    `json:"data,omitempty"` // base64
	MimeType string    `json:"mimeType,omitempty"`
	URI      string    `json:"uri,omitempty"`
	Name     string    `json:"name,omitempty"`
	Resource *Resource `json:"resource,omitempty"`
}

// Resource is the body of an embedded resource.
type Resource struct {
	URI      string `json:"uri,omitempty"`
	MimeType string `json:"mimeType,omitempty"`
	Text     string `json:"text,omitempty"`
	Blob     string `json:"blob,omitempty"` // base64
}

// Text returns an outcome whose output is the string s.
func Text(s string) Outcome { return Outcome{Output: rawjson.Quote(s)} }

// Failed returns an outcome with an error.
func Failed(code Code, message string) Outcome {
	return Outcome{Err: &Error{Code: code, Message: message}}
}

// Hash returns the hex SHA-256 by which the audit log identifies what the model reads of the
// outcome. An output without content is hashed as the tool wrote it, a text as a JSON string.
// Any other outcome is hashed as {"content":[...]} or {"error":{...}}. The bytes are hashed as
// they are, because a canonical form of a large output takes long to make.
func (o Outcome) Hash() string {
	o.Details = nil
	if len(o.Output) > 0 && o.Content == nil && o.Err == nil {
		return Digest(o.Output)
	}
	return Digest(rawjson.MustMarshal(o))
}

// Fits reports whether the outcome takes at most limit bytes as JSON. An outcome that has only
// an output, the common case, is measured without encoding it.
func (o Outcome) Fits(limit int) bool {
	const member = len(`{"output":}`)
	if o.Content == nil && o.Err == nil && o.Details == nil && !o.IsError && len(o.Output)+member <= limit {
		return true
	}
	return len(o.Output) <= limit && len(rawjson.MustMarshal(o)) <= limit
}

// Lost reports whether the result is lost. The call still needs an answer: see [Outcome.OrLost].
func (o Outcome) Lost() bool {
	return o.Output == nil && o.Content == nil && o.Err == nil
}

// OrLost returns o, or an error if the result is lost.
func (o Outcome) OrLost() Outcome {
	if !o.Lost() {
		return o
	}
	return Failed(CodeResultLost, "The result of this call was lost. It may or may not have run.")
}

// Failure reports whether the model should read the outcome as a failure.
func (o Outcome) Failure() bool { return o.Err != nil || o.IsError }

// Plain reports whether the error is only a text: the tool gave no code of its own, and did not say
// that a later run may succeed.
func (e *Error) Plain() bool {
	return (e.Code == "" || e.Code == CodeToolError) && !e.Retryable
}

// ErrorText returns the error as the model reads it: the tool's own words if the tool gave only
// text, else JSON text {"error":code,"message":...,"retryable":...}. It is never empty.
func (e *Error) ErrorText() string {
	message := e.Message
	if strings.TrimSpace(message) == "" {
		message = "The tool failed without saying why."
	}
	if e.Plain() {
		return message
	}
	body, err := rawjson.Marshal(struct {
		Error     Code   `json:"error"`
		Message   string `json:"message"`
		Retryable bool   `json:"retryable"`
		Details   any    `json:"details,omitempty"`
	}{cmp.Or(e.Code, CodeToolError), message, e.Retryable, e.Details})
	if err != nil { // details that cannot be encoded as JSON
		return message
	}
	return string(body)
}

// OutputString returns the text of an output that is a JSON string, and true.
func (o Outcome) OutputString() (string, bool) {
	if len(o.Output) == 0 || o.Output[0] != '"' {
		return "", false
	}
	var s string
	if err := json.Unmarshal(o.Output, &s); err != nil {
		return "", false
	}
	return s, true
}
