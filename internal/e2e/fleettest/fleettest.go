// Package fleettest holds helpers of the whole-fleet tests, both of fleets in one process and
// of fleets of several processes.
package fleettest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Call is one tool call: a tool, and its input as JSON. An empty input means {}. Call is an
// alias, so that go vet accepts a literal without field names.
type Call = struct{ Name, Input string }

// Canonical returns a batch of these calls in the canonical dialect, with the call ids c0, c1,
// ...
func Canonical(session, id string, calls ...Call) messages.Batch {
	return BatchIn(messages.Canonical, session, id, calls...)
}

// BatchIn returns a batch of these calls in a provider's dialect, with the call ids c0, c1,
// ...
func BatchIn(p messages.Provider, session, id string, calls ...Call) messages.Batch {
	list := make([]string, len(calls))
	wrap := func(format string) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(format, strings.Join(list, ",")))
	}
	b := messages.Batch{V: messages.Version, ID: messages.BatchID(id), Session: messages.SessionID(session), Provider: p}
	for i, c := range calls {
		id, name, input := fmt.Sprintf("c%d", i), c.Name, c.Input
		if input == "" {
			input = "{}"
		}
		quoted := rawjson.Quote(input)
		switch p {
		case messages.Anthropic:
			list[i] = fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":%s}`, id, name, input)
		case messages.OpenAIChat:
			list[i] = fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":%s}}`, id, name, quoted)
		case messages.OpenAIResponses:
			list[i] = fmt.Sprintf(`{"type":"function_call","call_id":%q,"name":%q,"arguments":%s}`, id, name, quoted)
		case messages.Bedrock:
			list[i] = fmt.Sprintf(`{"toolUse":{"toolUseId":%q,"name":%q,"input":%s}}`, id, name, input)
		case messages.Gemini:
			list[i] = fmt.Sprintf(`{"functionCall":{"id":%q,"name":%q,"args":%s}}`, id, name, input)
		case messages.Canonical:
			list[i] = fmt.Sprintf(`{"id":%q,"name":%q,"input":%s}`, id, name, input)
		}
	}
	switch p {
	case messages.Anthropic, messages.Bedrock:
		b.Message = wrap(`{"role":"assistant","content":[%s]}`)
	case messages.OpenAIChat:
		b.Message = wrap(`{"role":"assistant","content":null,"tool_calls":[%s]}`)
	case messages.OpenAIResponses:
		b.Message = wrap(`[%s]`)
	case messages.Gemini:
		b.Message = wrap(`{"role":"model","parts":[%s]}`)
	case messages.Canonical:
		b.Message = wrap(`{"calls":[%s]}`)
	default:
		panic(fmt.Sprintf("BatchIn does not write the dialect %q", p))
	}
	return b
}

// Statuses returns the statuses of a reply's results, separated by spaces.
func Statuses(r messages.Reply) string {
	var all []string
	for _, result := range r.Results {
		all = append(all, string(result.Status))
	}
	return strings.Join(all, " ")
}

// Says fails the test unless the text contains all of the words.
func Says(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s does not say %q:\n%s", what, word, text)
		}
	}
}

// AgentOver returns an agent of a tenant on a connection that the caller closes. An empty
// tenant means the only tenant.
func AgentOver(conn *bus.Conn, tenant string) *client.Client {
	c, err := client.Connect(context.Background(), fleet.Options{}, clientconn.Over(conn), client.Tenant(tenant))
	if err != nil {
		panic(err) // cannot happen, because the connection exists
	}
	return c
}
