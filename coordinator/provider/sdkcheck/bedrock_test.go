package sdkcheck

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime/document"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime/types"
	smithydocument "github.com/aws/smithy-go/document"
)

// The AWS types have no JSON tags, and only the SDK's client knows the wire format. So the
// client reads our JSON as the answer of a service, and writes it again in a request, which
// the test keeps.

// service answers every request with the same body and keeps the last request.
type service struct{ answer, request []byte }

func (s *service) Do(r *http.Request) (*http.Response, error) {
	var err error
	if s.request, err = io.ReadAll(r.Body); err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(bytes.NewReader(s.answer)),
		Request:    r,
	}, nil
}

// converse sends messages and tools. It returns the body of the request, and the message of
// the answer.
func converse(t testing.TB, answer json.RawMessage, messages []types.Message, tools *types.ToolConfiguration) ([]byte, types.Message) {
	t.Helper()
	s := &service{answer: []byte(`{"output":{"message":` + string(answer) + `},"stopReason":"tool_use",` +
		`"usage":{"inputTokens":1,"outputTokens":1,"totalTokens":2},"metrics":{"latencyMs":1}}`)}
	client := bedrockruntime.New(bedrockruntime.Options{
		Region:     "us-east-1",
		HTTPClient: s,
		Retryer:    aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "none", SecretAccessKey: "none"}, nil
		}),
	})
	out, err := client.Converse(t.Context(), &bedrockruntime.ConverseInput{ModelId: aws.String("model"), Messages: messages, ToolConfig: tools})
	if err != nil {
		t.Fatalf("converse: %v", err)
	}
	read, ok := out.Output.(*types.ConverseOutputMemberMessage)
	if !ok {
		t.Fatalf("the answer holds no message but %T", out.Output)
	}
	return s.request, read.Value
}

const greeting = `{"role":"assistant","content":[{"text":"hello"}]}`

func bedrockCalls(t testing.TB, message json.RawMessage) (ids []string) {
	t.Helper()
	if whole := member(message, "output", "message"); whole != nil {
		message = whole
	}
	_, m := converse(t, message, nil, nil)
	for _, block := range m.Content {
		if call, ok := block.(*types.ContentBlockMemberToolUse); ok && call.Value.Type != types.ToolUseTypeServerToolUse {
			ids = append(ids, aws.ToString(call.Value.ToolUseId))
		}
	}
	return ids
}

func bedrockAnswered(t testing.TB, reinjection json.RawMessage) (ids []string) {
	for _, block := range elements(t, member(reinjection, "content")) {
		ids = append(ids, text(member(block, "toolResult", "toolUseId")))
	}
	return ids
}

func bedrockAgain(t testing.TB, reinjection json.RawMessage) []byte {
	t.Helper()
	_, m := converse(t, reinjection, nil, nil)
	request, _ := converse(t, []byte(greeting), []types.Message{m}, nil)
	return elements(t, member(request, "messages"))[0]
}

// bedrockRetold builds the SDK's types by hand, because no answer of the service contains tool
// definitions.
func bedrockRetold(t testing.TB, tools json.RawMessage) []byte {
	t.Helper()
	var list []struct {
		ToolSpec *struct {
			Name        *string `json:"name"`
			Description *string `json:"description"`
			InputSchema struct {
				JSON any `json:"json"`
			} `json:"inputSchema"`
			Strict *bool `json:"strict"`
		} `json:"toolSpec"`
		CachePoint *struct {
			Type types.CachePointType `json:"type"`
		} `json:"cachePoint"`
	}
	dec := json.NewDecoder(bytes.NewReader(tools))
	dec.UseNumber()
	dec.DisallowUnknownFields()
	if err := dec.Decode(&list); err != nil {
		t.Fatalf("no list of tools: %v", err)
	}
	config := &types.ToolConfiguration{}
	for i, tool := range list {
		switch {
		case tool.ToolSpec != nil && tool.CachePoint == nil:
			config.Tools = append(config.Tools, &types.ToolMemberToolSpec{Value: types.ToolSpecification{
				Name:        tool.ToolSpec.Name,
				Description: tool.ToolSpec.Description,
				InputSchema: &types.ToolInputSchemaMemberJson{Value: document.NewLazyDocument(documentOf(tool.ToolSpec.InputSchema.JSON))},
				Strict:      tool.ToolSpec.Strict,
			}})
		case tool.CachePoint != nil && tool.ToolSpec == nil:
			config.Tools = append(config.Tools, &types.ToolMemberCachePoint{Value: types.CachePointBlock{Type: tool.CachePoint.Type}})
		default:
			t.Fatalf("tool %d has not exactly one member", i)
		}
	}
	request, _ := converse(t, []byte(greeting), nil, config)
	return member(request, "toolConfig", "tools")
}

// documentOf returns v with its numbers in the SDK's own type. The SDK would write a
// json.Number as a string.
func documentOf(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = documentOf(v[key])
		}
	case []any:
		for i := range v {
			v[i] = documentOf(v[i])
		}
	case json.Number:
		return smithydocument.Number(v)
	}
	return v
}
