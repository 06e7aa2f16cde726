package mcpserver

import (
	"errors"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/messages"
)

// A call ends without an answer: the error has the call's id. A model that makes the call
// again without this id could cause its effect twice.
func TestACallWithoutAnAnswerIsAskedForAgainByItsID(t *testing.T) {
	busy := &messages.Refusal{Class: messages.ClassBusy, Message: "This coordinator is shutting down."}
	for _, err := range []error{errors.New("the connection is lost"), busy} {
		got := answer(named{id: "the-id", session: "s"}, messages.Reply{}, err)
		text := got.Content[0].(*mcp.TextContent).Text
		if !got.IsError || !strings.Contains(text, `"the-id"`) || !strings.Contains(text, "may run nevertheless") {
			t.Errorf("%v: got %v %s", err, got.IsError, text)
		}
	}
}
