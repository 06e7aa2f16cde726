package mcpserver

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

// Caller is the sender of a request, with the sessions for its calls.
type Caller struct {
	Client *client.Client // client of the tenant
	// Tenant and User keep the calls of different callers apart.
	Tenant, User string
	// Path is the session in the address of the request; "": none. Session is the session of
	// calls that name no session.
	Path, Session messages.SessionID
	// Closing ends, with a cause, when the server must answer although the client still waits.
	// May be nil.
	Closing context.Context
}

// visit is one connection over stdio, or one request over HTTP.
type visit struct {
	Caller
	header    http.Header            // nil over stdio
	gone      context.Context        // ends when the client no longer reads answers
	cancelled context.Context        // ends when the client has cancelled the call in another request
	turn      func() (stored func()) // its result lets the connection's next call in
	// request is the prefix for ids of calls without an id, by which another server finds
	// them; "": another server cannot find them.
	request string
	calls   sync.WaitGroup
}

type visitKey struct{}

// Names of headers and _meta keys that clients use.
const (
	sessionHeader = "Toolfleet-Session"
	idHeader      = "Idempotency-Key"
	sessionMeta   = "toolfleet/session"
	idMeta        = "toolfleet/id"
	resultMeta    = "toolfleet/result"
	claudeMeta    = "claudecode/toolUseId"
	idPrefix      = "mcp-" // prefix of ids that this server makes
)

// named is a call with its ids.
type named struct {
	session messages.SessionID
	id      messages.BatchID
	own     bool // the client gave the id, so it can ask for the call again
	// textual says that the result has no structured content, because the client would show it
	// to the model.
	textual bool
}

// name finds the session and the id of a call.
func (v *visit) name(meta mcp.Meta) (n named, err error) {
	session, err := first(
		said{"the path", string(v.Path)}, said{sessionHeader, v.header.Get(sessionHeader)}, ofMeta(meta, sessionMeta), said{"", string(v.Session)})
	if err != nil {
		return n, err
	}
	id, err := first(ofMeta(meta, idMeta), ofMeta(meta, claudeMeta), said{idHeader, v.header.Get(idHeader)})
	if err != nil {
		return n, err
	}
	n = named{session: messages.SessionID(session), id: messages.BatchID(id), own: id != "", textual: meta[claudeMeta] != nil}
	if whole, said := meta[resultMeta].(bool); said {
		n.textual = !whole
	}
	if !n.own {
		n.id = messages.BatchID(idPrefix + v.request + rand.Text())
	}
	return n, nil
}

// said is a value with the place where the client gave it.
type said struct {
	where string
	value any
}

func ofMeta(meta mcp.Meta, key string) said {
	if value, ok := meta[key]; ok && value != nil {
		return said{"_meta[\"" + key + "\"]", value}
	}
	return said{key, ""}
}

// first returns the first value that is not empty.
func first(values ...said) (string, error) {
	for _, v := range values {
		text, ok := v.value.(string)
		switch {
		case ok && text == "":
			continue
		case !ok:
			return "", invalid("%s is %T; want a string", v.where, v.value)
		case !utf8.ValidString(text):
			return "", invalid("%s is not UTF-8", v.where)
		case len(text) > messages.MaxID:
			return "", invalid("%s has %d bytes; the limit is %d", v.where, len(text), messages.MaxID)
		}
		return text, nil
	}
	return "", nil
}

// invalid returns the error of a request that breaks the protocol.
func invalid(format string, args ...any) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}
