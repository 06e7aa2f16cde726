package mcpserver

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// answer returns what the client gets for a reply, or for the error that came in its place.
func answer(n named, reply messages.Reply, err error) *mcp.CallToolResult {
	var refusal *messages.Refusal
	switch {
	case errors.As(err, &refusal) && refusal.Class == messages.ClassBusy: // it is stored
		return unanswered(n, "The fleet did not answer (busy): "+refusal.Message)
	case errors.As(err, &refusal):
		return failure(n, fmt.Sprintf("The fleet did not take this call (%s): %s", refusal.Class, refusal.Message))
	case err != nil:
		return unanswered(n, "The fleet did not answer: "+err.Error()+".")
	}
	result, err := reply.Single()
	if err != nil {
		return failure(n, "The result of this call cannot be read: "+err.Error())
	}
	return shown(n, result)
}

// shown returns a result in the form of MCP: its content as content, and the whole result as
// structured content.
func shown(n named, result messages.Result) *mcp.CallToolResult {
	r := &mcp.CallToolResult{Meta: metaOf(n), IsError: result.Failure()}
	if !n.textual {
		r.StructuredContent = json.RawMessage(rawjson.MustMarshal(result))
	}
	switch {
	case result.Err != nil:
		r.Content = texts(sentence(result.Err))
	case result.Content != nil:
		r.Content = make([]mcp.Content, len(result.Content))
		for i, b := range result.Content {
			r.Content[i] = contentOf(b)
		}
	default:
		text, ok := result.OutputString()
		if !ok {
			text = string(result.Output)
		}
		r.Content = texts(text)
	}
	return r
}

// sentence returns the text of an error for the model.
func sentence(e *messages.Error) string {
	if e.Message == "" || e.Details != nil {
		return e.ErrorText()
	}
	return e.Message
}

// completed is a result with resultType "complete". The SDK sets this field only in results of
// tools that were added to it, so completed is decoded from JSON.
var completed = func() (r mcp.CallToolResult) {
	if err := json.Unmarshal([]byte(`{"content":[],"resultType":"complete"}`), &r); err != nil {
		panic(err)
	}
	return r
}()

// complete returns a result for a request with this _meta. Since protocol version 2026-07-28,
// a result must say that it is complete.
func complete(r *mcp.CallToolResult, request mcp.Meta) *mcp.CallToolResult {
	if version, _ := request[mcp.MetaKeyProtocolVersion].(string); version < "2026-07-28" {
		return r
	}
	said := completed
	said.Meta, said.Content, said.StructuredContent, said.IsError = r.Meta, r.Content, r.StructuredContent, r.IsError
	return &said
}

// contentOf returns a block as MCP content. Blocks already have MCP's form. If the SDK does
// not know the block's type, the content is a note.
func contentOf(b messages.Block) mcp.Content {
	if b.Type == "text" {
		return &mcp.TextContent{Text: b.Text}
	}
	var read mcp.CallToolResult
	raw := append(append([]byte(`{"content":[`), rawjson.MustMarshal(b)...), "]}"...)
	if err := json.Unmarshal(raw, &read); err != nil || len(read.Content) != 1 {
		return &mcp.TextContent{Text: fmt.Sprintf("[a block of the type %.40q is left out]", b.Type)}
	}
	return read.Content[0]
}

// failure returns an error result that holds one sentence.
func failure(n named, text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Meta: metaOf(n), Content: texts(text), IsError: true}
}

// goesOn returns what the client gets for a call that is still running.
func goesOn(n named, text string) *mcp.CallToolResult {
	how := fmt.Sprintf(" The call goes on. To get its result, ask again with the same id: tools/call with the same arguments and _meta {%q: %q, %q: %q}. "+
		"A call with another id is another call.", idMeta, n.id, sessionMeta, n.session)
	return &mcp.CallToolResult{Meta: metaOf(n), Content: texts(text + how)}
}

// unanswered returns what the client gets if it is not known whether the fleet has the call.
// The client must not make the call again under a new id, because both calls could run.
func unanswered(n named, text string) *mcp.CallToolResult {
	how := fmt.Sprintf(" The call may run nevertheless. Do not make it again as a new call: ask with the same id, tools/call with the same arguments and _meta {%q: %q, %q: %q}.",
		idMeta, n.id, sessionMeta, n.session)
	return &mcp.CallToolResult{Meta: metaOf(n), IsError: true, Content: texts(text + how)}
}

// metaOf returns the ids of a call, with which a client can ask for its result again.
func metaOf(n named) mcp.Meta { return mcp.Meta{idMeta: string(n.id), sessionMeta: string(n.session)} }

func texts(text string) []mcp.Content { return []mcp.Content{&mcp.TextContent{Text: text}} }
