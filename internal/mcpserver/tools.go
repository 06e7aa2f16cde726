package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

// startWithin is how long a request for the list of tools waits for a coordinator. Clients ask
// for the list only once, when they start.
const startWithin = 5 * time.Second

// listTools answers with the tools that the tenant may call.
func (s *Server) listTools(ctx context.Context, v *visit) (mcp.Result, error) {
	list, err := v.Client.Tools(ctx, messages.GetTools{Provider: messages.Canonical})
	for end := time.Now().Add(startWithin); mayPass(err) && time.Now().Before(end) && ctx.Err() == nil; {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		case <-v.gone.Done():
			return nil, errGone
		}
		list, err = v.Client.Tools(ctx, messages.GetTools{Provider: messages.Canonical})
	}
	if err != nil {
		return nil, err
	}
	tools, err := definitions(list.Tools)
	return &mcp.ListToolsResult{Tools: tools, Cacheable: mcp.Cacheable{CacheScope: "private"}}, err
}

// lookForTools is how often a server over stdio checks whether the tools have changed.
const lookForTools = 10 * time.Second

// watchTools notifies the client of a connection when the tools have changed, until ctx ends.
func watchTools(ctx context.Context, v *visit, p *mcp.Server) {
	looks := time.NewTicker(lookForTools)
	defer looks.Stop()
	for known := ""; ; {
		list, err := v.Client.Tools(ctx, messages.GetTools{Provider: messages.Canonical})
		if err == nil {
			if known != "" && known != list.Digest {
				// The SDK sends the notification when a tool is added. Clients never see the
				// added tool.
				p.AddTool(&mcp.Tool{Name: "changed", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
			}
			known = list.Digest
		}
		select {
		case <-looks.C:
		case <-ctx.Done():
			return
		}
	}
}

// mayPass reports whether another request for the tools may succeed.
func mayPass(err error) bool {
	var refusal *messages.Refusal
	return errors.Is(err, client.ErrNoFleet) || errors.As(err, &refusal) && refusal.Class == messages.ClassBusy
}

// definition is a tool in the canonical catalogue.
type definition struct {
	Name        string           `json:"name"`
	Description string           `json:"description"`
	Kind        messages.Kind    `json:"kind"`
	OnCrash     messages.OnCrash `json:"on_crash"`
	Risk        messages.Tier    `json:"risk"`
	InputSchema json.RawMessage  `json:"input_schema"`
}

// definitions returns the tools of a canonical catalogue in MCP's form.
func definitions(catalogue json.RawMessage) ([]*mcp.Tool, error) {
	var listed struct {
		Tools []definition `json:"tools"`
	}
	if err := json.Unmarshal(catalogue, &listed); err != nil {
		return nil, fmt.Errorf("read the catalogue: %w", err)
	}
	tools := make([]*mcp.Tool, len(listed.Tools))
	for i, d := range listed.Tools {
		destructive := d.Risk == messages.TierHigh || d.Risk == messages.TierCritical
		tools[i] = &mcp.Tool{Name: d.Name, Description: d.Description, InputSchema: d.InputSchema, Annotations: &mcp.ToolAnnotations{
			ReadOnlyHint:    d.Kind == messages.KindRead || d.Kind == messages.KindCompute,
			IdempotentHint:  d.OnCrash == messages.OnCrashIdempotent,
			DestructiveHint: &destructive,
		}}
	}
	return tools, nil
}
