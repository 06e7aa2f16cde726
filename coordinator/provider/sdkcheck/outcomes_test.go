package sdkcheck

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

// turns holds a message of each provider, as the provider sends it, with each kind of call in
// that dialect.
var turns = map[string]string{
	"anthropic": `{"id":"msg_1","type":"message","role":"assistant","model":"claude","stop_reason":"tool_use","stop_sequence":null,
		"usage":{"input_tokens":1,"output_tokens":1},"content":[
		{"type":"thinking","thinking":"...","signature":"c2ln"},
		{"type":"text","text":"Let me look."},
		{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"x"}},
		{"type":"tool_use","id":"toolu_1","name":"lookup","input":{"id":9007199254740993}},
		{"type":"tool_use","id":"toolu_2","name":"screenshot","toolset_name":"browser","input":{}},
		{"type":"tool_use","id":"toolu_3","name":"lookup","input":{},"caller":{"type":"code_execution_20260120","tool_id":"srvtoolu_1"}},
		{"type":"tool_use","id":"toolu_4","name":"lookup","input":{},"caller":{"type":"direct"}}]}`,
	"openai-chat": `{"role":"assistant","content":null,"refusal":null,"tool_calls":[
		{"id":"call_1","type":"function","function":{"name":"lookup","arguments":"{\"id\":9007199254740993}"}},
		{"id":"call_2","type":"custom","custom":{"name":"run","input":"print(1)"}},
		{"id":"functions.eval:301","type":"function","function":{"name":"lookup","arguments":""}}]}`,
	"openai-responses": `[
		{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"eA=="},
		{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"x"}},
		{"type":"function_call","id":"fc_1","call_id":"call_1","name":"lookup","arguments":"{}","status":"completed"},
		{"type":"function_call","id":"fc_2","call_id":"call_2","name":"lookup","namespace":"crm","arguments":"{}"},
		{"type":"function_call","id":"fc_3","call_id":"call_3","name":"lookup","arguments":"{}","caller":{"type":"program","caller_id":"prog_1"}},
		{"type":"custom_tool_call","id":"ctc_1","call_id":"call_4","name":"run","input":"print(1)"},
		{"type":"custom_tool_call","id":"ctc_2","call_id":"call_5","name":"run","input":"","caller":{"type":"program","caller_id":"prog_1"}}]`,
	"bedrock": `{"role":"assistant","content":[
		{"reasoningContent":{"reasoningText":{"text":"...","signature":"c2ln"}}},
		{"text":"Let me look."},
		{"toolUse":{"toolUseId":"tooluse_1","name":"lookup","input":{"id":9007199254740993}}},
		{"toolUse":{"toolUseId":"tooluse_s","name":"nova_code","input":{},"type":"server_tool_use"}},
		{"toolUse":{"toolUseId":"tooluse_2","name":"lookup","input":{}}}]}`,
	"gemini": `{"role":"model","parts":[
		{"text":"Let me look.","thought":true},
		{"functionCall":{"id":"fc1","name":"lookup","args":{"id":7}},"thoughtSignature":"c2ln"},
		{"functionCall":{"name":"lookup"}},
		{"functionCall":{"name":"lookup","args":{"id":8}}}]}`,
}

// pixel is a complete PNG image, in base64.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// outcomes lists outcomes of every kind.
var outcomes = map[string]messages.Outcome{
	"text":           messages.Text("a < b && c"),
	"empty":          messages.Text(""),
	"blank":          messages.Text(" \n"),
	"looks like":     messages.Text(`{"type":"tool_result"}`),
	"object":         {Output: json.RawMessage(`{"id":9007199254740993,"error":"x","content":[],"status":"error"}`)},
	"empty object":   {Output: json.RawMessage(`{}`)},
	"list":           {Output: json.RawMessage(`[1,{"a":null}]`)},
	"number":         {Output: json.RawMessage(`12345678901234567890.10`)},
	"null":           {Output: json.RawMessage(`null`)},
	"error":          messages.Failed(messages.CodeTimeout, "too slow"),
	"tool's error":   messages.Failed(messages.CodeToolError, ""),
	"lost":           {},
	"no blocks":      {Content: []messages.Block{}},
	"blocks":         {Content: []messages.Block{{Type: "text", Text: "one"}, {Type: "text", Text: ""}, {Type: "text", Text: "two"}}},
	"image":          {Content: []messages.Block{{Type: "image", Data: pixel, MimeType: "image/png"}, {Type: "text", Text: "a pixel"}}},
	"unknown image":  {Content: []messages.Block{{Type: "image", Data: pixel, MimeType: "image/tiff"}}},
	"failed blocks":  {Content: []messages.Block{{Type: "text", Text: "no"}, {Type: "image", Data: pixel, MimeType: "image/png"}}, IsError: true},
	"audio":          {Content: []messages.Block{{Type: "audio", Data: "AAAA", MimeType: "audio/wav"}}},
	"resource":       {Content: []messages.Block{{Type: "resource", Resource: &messages.Resource{URI: "file:///a", MimeType: "text/plain", Text: "body"}}}},
	"link":           {Content: []messages.Block{{Type: "resource_link", URI: "https://example.com/a", Name: "a"}}},
	"unknown blocks": {Content: []messages.Block{{Type: "hologram"}}},
}

// TestOutcomes answers every kind of call with every kind of outcome. The SDKs have to read
// the answers.
func TestOutcomes(t *testing.T) {
	for name, s := range sdks {
		turn := json.RawMessage(turns[name])
		calls, err := s.codec.Decode(turn)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for about, outcome := range outcomes {
			t.Run(name+"/"+about, func(t *testing.T) {
				reinjection, err := s.codec.Encode(calls, slices.Repeat([]messages.Outcome{outcome}, len(calls)))
				if err != nil {
					t.Fatal(err)
				}
				s.sameCalls(t, turn, s.answered(t, reinjection))
				same(t, reinjection, s.again(t, reinjection), s.floatResults)
			})
		}
	}
}
