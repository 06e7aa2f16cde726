package sdkcheck

import (
	"encoding/json"
	"testing"

	anthropicsdk "github.com/anthropics/anthropic-sdk-go"
)

func anthropicCalls(t testing.TB, message json.RawMessage) (ids []string) {
	t.Helper()
	if content := member(message, "content"); len(content) > 0 && content[0] == '"' {
		return nil // a stored history may hold plain text, and the SDK's response type only has blocks
	}
	var m anthropicsdk.Message
	if err := json.Unmarshal(message, &m); err != nil {
		t.Fatalf("message.json is no Message: %v", err)
	}
	for _, block := range m.Content {
		if call, ok := block.AsAny().(anthropicsdk.ToolUseBlock); ok {
			ids = append(ids, call.ID)
		}
	}
	return ids
}

func anthropicAnswered(t testing.TB, reinjection json.RawMessage) (ids []string) {
	for _, block := range elements(t, member(reinjection, "content")) {
		ids = append(ids, text(member(block, "tool_use_id")))
	}
	return ids
}

func anthropicAgain(t testing.TB, reinjection json.RawMessage) []byte {
	t.Helper()
	var m anthropicsdk.MessageParam
	if err := json.Unmarshal(reinjection, &m); err != nil {
		t.Fatalf("no MessageParam: %v", err)
	}
	return marshal(t, m)
}

func anthropicRetold(t testing.TB, tools json.RawMessage) []byte {
	t.Helper()
	var list []anthropicsdk.ToolUnionParam
	if err := json.Unmarshal(tools, &list); err != nil {
		t.Fatalf("no []ToolUnionParam: %v", err)
	}
	for i, tool := range list {
		if tool.OfTool == nil {
			t.Errorf("tool %d is not a custom tool to the SDK", i)
		}
	}
	return marshal(t, list)
}
