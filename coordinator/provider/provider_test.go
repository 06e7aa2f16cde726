package provider_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// oneCall holds plain messages in every dialect, each with one call "a" of the tool "read".
var oneCall = map[messages.Provider][]string{
	messages.Anthropic: {
		`{"role":"assistant","content":[{"type":"text","text":"x"},{"type":"tool_use","id":"a","name":"read","input":{"k":1}}]}`,
		`{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"tool_use","id":"a","name":"read","input":{"k":1}}],"stop_reason":"tool_use"}`,
	},
	messages.OpenAIChat: {
		`{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"k\":1}"}}]}`,
		`{"role":"assistant","content":"x","tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"k\":1}"}}]}`,
		`{"role":"assistant","content":[{"type":"text","text":"x"}],"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"k\":1}"}}]}`,
		`{"role":"assistant","content":[],"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"k\":1}"}}]}`,
		`{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"read","arguments":"{\"k\":1}"}}]}}]}`,
	},
	messages.OpenAIResponses: {
		`[{"type":"message","id":"m","role":"assistant","content":[]},{"type":"function_call","id":"fc","call_id":"a","name":"read","arguments":"{\"k\":1}"}]`,
		`{"object":"response","output":[{"type":"function_call","id":"fc","call_id":"a","name":"read","arguments":"{\"k\":1}"}]}`,
	},
	messages.Bedrock: {
		`{"role":"assistant","content":[{"text":"x"},{"toolUse":{"toolUseId":"a","name":"read","input":{"k":1}}}]}`,
		`{"output":{"message":{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"read","input":{"k":1}}}]}},"stopReason":"tool_use"}`,
	},
	messages.Gemini: {
		`{"role":"model","parts":[{"text":"x"},{"functionCall":{"id":"a","name":"read","args":{"k":1}}}]}`,
		`{"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"id":"a","name":"read","args":{"k":1}}}]},"finishReason":"STOP"}]}`,
	},
	messages.Canonical: {
		`{"calls":[{"id":"a","name":"read","input":{"k":1}}]}`,
	},
}

func codecFor(t testing.TB, p messages.Provider) provider.Codec {
	t.Helper()
	codec, err := provider.For(p)
	if err != nil {
		t.Fatal(err)
	}
	return codec
}

// A message is sent under another provider's name: it is refused. If it were read as a message
// without calls, the agent would wait in vain. If its calls were read, the reply would be in a
// dialect that its model does not know.
func TestForeignMessages(t *testing.T) {
	for _, speaks := range messages.Providers {
		codec := codecFor(t, speaks)
		for of, list := range oneCall {
			for _, message := range list {
				calls, err := codec.Decode(json.RawMessage(message))
				if of == speaks {
					if err != nil || len(calls) != 1 || calls[0].ID != "a" || calls[0].Name != "read" || string(calls[0].Input) != `{"k":1}` {
						t.Errorf("%s: Decode(%s): got %+v, %v", speaks, message, calls, err)
					}
					continue
				}
				var refusal *messages.Refusal
				if !errors.As(err, &refusal) || refusal.Class != messages.ClassMalformedMessage {
					t.Errorf("%s read a message of %s: %d calls, error %v\n%s", speaks, of, len(calls), err, message)
				}
			}
		}
	}
}

func TestForUnknown(t *testing.T) {
	_, err := provider.For("open\nai")
	var refusal *messages.Refusal
	if !errors.As(err, &refusal) || refusal.Class != messages.ClassUnsupportedProvider {
		t.Fatalf("got %v, want unsupported_provider", err)
	}
	for _, p := range messages.Providers {
		if !strings.Contains(refusal.Message, string(p)) {
			t.Errorf("%q does not name %s", refusal.Message, p)
		}
	}
}

func TestReinjectRefuses(t *testing.T) {
	message := oneCall[messages.Canonical][0]
	for _, test := range []struct {
		request string
		class   messages.Class
		where   string
	}{
		{``, messages.ClassMalformedMessage, "message"},
		{`[]`, messages.ClassMalformedMessage, "want an object, got an array"},
		{`{"provider":"canonical"}`, messages.ClassMalformedMessage, "message: is missing"},
		{`{"message":` + message + `}`, messages.ClassMalformedMessage, "provider: want a string, got nothing"},
		{`{"provider":"cohere","message":{}}`, messages.ClassUnsupportedProvider, `"cohere"`},
		{`{"provider":"canonical","message":` + message + `,"results":{}}`, messages.ClassMalformedMessage, "results: want an array, got an object"},
		{`{"provider":"canonical","message":` + message + `,"results":["x"]}`, messages.ClassMalformedMessage, "results[0]: want an object, got a string"},
		{`{"provider":"canonical","message":` + message + `,"results":[{"error":{"code":"x"}}]}`, messages.ClassMalformedMessage, "results[0].error: want a string, got an object"},
		{`{"provider":"canonical","message":` + message + `,"results":[{"content":"x"}]}`, messages.ClassMalformedMessage, "results[0].content: want an array, got a string"},
		{`{"provider":"canonical","message":` + message + `,"results":[{"content":[{"text":"x"}]}]}`, messages.ClassMalformedMessage, "results[0].content[0].type: want a string, got nothing"},
		{`{"provider":"canonical","message":` + message + `,"results":[{"content":[{"type":"image","data":7}]}]}`, messages.ClassMalformedMessage, "results[0].content[0]: is no MCP content block"},
		{`{"provider":"canonical","message":` + message + `,"results":[null,null]}`, messages.ClassMalformedMessage, "results: has 2 results for 1 calls"},
		{`{"provider":"canonical","message":` + message + `,"message":{}}`, messages.ClassMalformedMessage, "appears twice"},
		{`{"provider":"canonical","message":` + message + `,"results":[{"output":{"a":1,"a":2}}]}`, messages.ClassMalformedMessage, `results: key "a" appears twice`},
		{`{"provider":"canonical","message":` + message + `,"results":[{"output":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}]}`, messages.ClassMalformedMessage, "results: nested more than 128 deep"},
		{`{"provider":"canonical","message":` + message + `,"results":[{"output":"` + "\xff" + `"}]}`, messages.ClassMalformedMessage, "results: not valid UTF-8"},
		{`{"provider":"canonical","message":` + strings.Repeat("[", 1<<20), messages.ClassMalformedMessage, "ends in the middle of a value"},
		{`{"provider":"canonical","message":` + message + `} x`, messages.ClassMalformedMessage, "more than one JSON value"},
	} {
		answer, err := provider.Reinject([]byte(test.request))
		var refusal *messages.Refusal
		if !errors.As(err, &refusal) || refusal.Class != test.class || !strings.Contains(refusal.Message, test.where) {
			t.Errorf("Reinject(%.300s): got %s, %v; want %s with %q", test.request, answer, err, test.class, test.where)
		}
	}
}

// A result has several members: an error among them is not lost.
func TestReinjectPrecedence(t *testing.T) {
	for results, want := range map[string]string{
		`[{"output":"o","error":"e"}]`:                                     `"error":"e"`,
		`[{"output":"o","error":null}]`:                                    `"output":"o"`,
		`[{"output":"o","content":[{"type":"text","text":"c"}]}]`:          `"content":[{"type":"text","text":"c"}]`,
		`[{"output":"o","is_error":true}]`:                                 `"output":"o","is_error":true`,
		`[{"content":[{"type":"text","text":"c","annotations":{"a":1}}]}]`: `"content":[{"type":"text","text":"c"}]`,
		`[{"content":[],"is_error":true}]`:                                 `"text":"The tool failed without saying why."`,
		`[{"content":[],"is_error":false}]`:                                `"content":[]`,
		`[{"details":"for people only"}]`:                                  `"error":"{\"error\":\"result_lost\"`,
		`[]`:                                                               `"error":"{\"error\":\"result_lost\"`,
		`null`:                                                             `"error":"{\"error\":\"result_lost\"`,
	} {
		answer, err := provider.Reinject([]byte(`{"provider":"canonical","message":` + oneCall[messages.Canonical][0] + `,"results":` + results + `}`))
		if err != nil || !strings.Contains(string(answer), want) {
			t.Errorf("results %s: got %s, %v; want %s in it", results, answer, err, want)
		}
	}
}

func ExampleReinject() {
	answer, err := provider.Reinject([]byte(`{
		"provider": "openai-chat",
		"message": {"role": "assistant", "content": null, "tool_calls": [
			{"id": "call_1", "type": "function", "function": {"name": "lookup_order", "arguments": "{\"id\": 9007199254740993}"}}
		]},
		"results": [{"output": {"status": "shipped"}}]
	}`))
	fmt.Println(string(answer), err)
	// Output:
	// {"reinjection":[{"role":"tool","tool_call_id":"call_1","content":"{\"status\":\"shipped\"}"}],"calls":[{"id":"call_1","name":"lookup_order","input":{"id":9007199254740993}}]} <nil>
}

func FuzzReinject(f *testing.F) {
	for p, list := range oneCall {
		for _, message := range list {
			f.Add([]byte(`{"provider":"` + string(p) + `","message":` + message + `,"results":[{"content":[{"type":"text","text":"\ud800"}],"is_error":true}]}`))
			f.Add([]byte(`{"provider":"` + string(p) + `","message":` + strings.Replace(message, `"name":"read"`, `"name":""`, 1) + `}`))
			f.Add([]byte(`{"provider":"` + string(p) + `","message":` + strings.Replace(message, `{"k":1}`, `{"k":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`, 1) + `}`))
		}
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		answer, err := provider.Reinject(request)
		var refusal *messages.Refusal
		switch {
		case err == nil && (rawjson.CheckSyntax(answer) != nil || !utf8.Valid(answer)):
			t.Fatalf("bad JSON: %v\n%s", rawjson.CheckSyntax(answer), answer)
		case err != nil && (!errors.As(err, &refusal) || refusal.Class == messages.ClassInternal):
			t.Fatalf("want a refusal with its reason, got %v", err)
		}
	})
}
