package hookjson

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// Event names the moment at which a hook runs.
type Event string

// The events. PostToolUseFailure is the event after the tool for every call that did not
// end ok, even if its tool was never started.
const (
	PreToolUse         Event = "PreToolUse"
	PostToolUse        Event = "PostToolUse"
	PostToolUseFailure Event = "PostToolUseFailure"
)

// Request is what a hook reads. The first half has the fields that Claude Code gives its
// hooks, so that hooks of Claude Code run here too. The second half has fields of toolfleet.
type Request struct {
	Event          Event              `json:"hook_event_name"`
	Session        messages.SessionID `json:"session_id"`
	TranscriptPath string             `json:"transcript_path"` // always empty: there is no transcript
	Cwd            string             `json:"cwd"`             // folder of a program; "" for a service
	PermissionMode string             `json:"permission_mode"` // always "default": the rules decide
	Tool           string             `json:"tool_name"`
	Input          json.RawMessage    `json:"tool_input"` // a string if the arguments are not JSON
	CallID         messages.CallID    `json:"tool_use_id"`
	// Response is the tool's output, as any JSON value; content blocks are an array.
	Response json.RawMessage `json:"tool_response,omitempty"`
	Error    string          `json:"error,omitempty"` // if the call failed: the error's text
	// IsInterrupt says whether a failed call was aborted; nil if the call did not fail.
	IsInterrupt *bool  `json:"is_interrupt,omitempty"`
	DurationMS  *int64 `json:"duration_ms,omitempty"` // after the tool

	Tenant    messages.TenantID  `json:"tenant"`
	Principal messages.Principal `json:"principal"`
	Labels    map[string]string  `json:"labels,omitempty"` // labels of the batch
	Batch     messages.BatchID   `json:"batch"`
	Index     int                `json:"index"`
	Kind      messages.Kind      `json:"kind,omitempty"`
	Status    messages.Status    `json:"status,omitempty"`     // after the tool
	ErrorCode messages.Code      `json:"error_code,omitempty"` // if the call failed

	hadBlocks bool // Response is content blocks
}

// Before returns the request before the tool.
func Before(call hook.Call) Request {
	q := Request{
		Event: PreToolUse, Session: call.Session, PermissionMode: "default", Tool: call.Tool, Input: call.Input, CallID: call.ID,
		Tenant: call.Tenant, Batch: call.Batch, Index: call.Index, Kind: call.Kind,
		Principal: messages.Principal{Tenant: call.Tenant, User: call.User}, Labels: call.Labels,
	}
	// If the arguments are not JSON, the call was refused before any hook. Only hooks after
	// the tool see such arguments.
	if rawjson.Check(call.Input) != nil {
		q.Input = rawjson.Quote(string(call.Input))
	}
	return q
}

// After returns the request after the tool.
func After(call hook.Call, done hook.Done) Request {
	q := Before(call)
	q.Event, q.Status = PostToolUse, done.Status
	q.DurationMS = new(int64(done.Duration / time.Millisecond))
	q.Response = done.Outcome.Output
	if q.hadBlocks = done.Outcome.Content != nil; q.hadBlocks {
		q.Response = rawjson.MustMarshal(done.Outcome.Content)
	}
	if done.Status == messages.StatusOK {
		return q
	}
	q.Event, q.Error = PostToolUseFailure, textOf(done.Outcome.Content)
	q.IsInterrupt = new(done.Status == messages.StatusAborted)
	if err := done.Outcome.Err; err != nil {
		q.Error, q.ErrorCode = err.Message, err.Code
	}
	return q
}

func textOf(blocks []messages.Block) string {
	var texts []string
	for _, b := range blocks {
		if b.Text != "" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}
