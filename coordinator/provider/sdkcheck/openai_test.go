package sdkcheck

import (
	"encoding/json"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
)

func chatCalls(t testing.TB, message json.RawMessage) (ids []string) {
	t.Helper()
	var m openai.ChatCompletionMessage
	if choices := member(message, "choices"); choices != nil {
		var whole openai.ChatCompletion
		if err := json.Unmarshal(message, &whole); err != nil || len(whole.Choices) == 0 {
			t.Fatalf("message.json is no ChatCompletion: %v", err)
		}
		m = whole.Choices[0].Message
	} else if err := json.Unmarshal(message, &m); err != nil {
		t.Fatalf("message.json is no ChatCompletionMessage: %v", err)
	}
	for _, call := range m.ToolCalls {
		ids = append(ids, call.ID)
	}
	return ids
}

func chatAnswered(t testing.TB, reinjection json.RawMessage) (ids []string) {
	for _, message := range elements(t, reinjection) {
		ids = append(ids, text(member(message, "tool_call_id")))
	}
	return ids
}

func chatAgain(t testing.TB, reinjection json.RawMessage) []byte {
	t.Helper()
	var list []openai.ChatCompletionMessageParamUnion
	if err := json.Unmarshal(reinjection, &list); err != nil {
		t.Fatalf("no []ChatCompletionMessageParamUnion: %v", err)
	}
	for i, m := range list {
		if m.OfTool == nil {
			t.Errorf("message %d is not of role tool to the SDK", i)
		}
	}
	return marshal(t, list)
}

func chatRetold(t testing.TB, tools json.RawMessage) []byte {
	t.Helper()
	var list []openai.ChatCompletionToolUnionParam
	if err := json.Unmarshal(tools, &list); err != nil {
		t.Fatalf("no []ChatCompletionToolUnionParam: %v", err)
	}
	for i, tool := range list {
		if tool.OfFunction == nil {
			t.Errorf("tool %d is not a function to the SDK", i)
		}
	}
	return marshal(t, list)
}

func responsesCalls(t testing.TB, message json.RawMessage) (ids []string) {
	t.Helper()
	output := message
	if whole := member(message, "output"); whole != nil {
		var r responses.Response
		if err := json.Unmarshal(message, &r); err != nil {
			t.Fatalf("message.json is no Response: %v", err)
		}
		output = whole
	}
	var items []responses.ResponseOutputItemUnion
	if err := json.Unmarshal(output, &items); err != nil {
		t.Fatalf("message.json has no []ResponseOutputItemUnion: %v", err)
	}
	for _, item := range items {
		switch call := item.AsAny().(type) {
		case responses.ResponseFunctionToolCall:
			ids = append(ids, call.CallID)
		case responses.ResponseCustomToolCall:
			ids = append(ids, call.CallID)
		}
	}
	return ids
}

func responsesAnswered(t testing.TB, reinjection json.RawMessage) (ids []string) {
	for _, item := range elements(t, reinjection) {
		ids = append(ids, text(member(item, "call_id")))
	}
	return ids
}

func responsesAgain(t testing.TB, reinjection json.RawMessage) []byte {
	t.Helper()
	var list []responses.ResponseInputItemUnionParam
	if err := json.Unmarshal(reinjection, &list); err != nil {
		t.Fatalf("no []ResponseInputItemUnionParam: %v", err)
	}
	for i, item := range list {
		if item.OfFunctionCallOutput == nil && item.OfCustomToolCallOutput == nil {
			t.Errorf("item %d is no call output to the SDK", i)
		}
	}
	return marshal(t, list)
}

func responsesRetold(t testing.TB, tools json.RawMessage) []byte {
	t.Helper()
	var list []responses.ToolUnionParam
	if err := json.Unmarshal(tools, &list); err != nil {
		t.Fatalf("no []ToolUnionParam: %v", err)
	}
	for i, tool := range list {
		if tool.OfFunction == nil {
			t.Errorf("tool %d is not a function to the SDK", i)
		}
	}
	return marshal(t, list)
}
