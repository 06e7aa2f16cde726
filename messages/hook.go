package messages

// HookMessageType names what a [HookMessage] tells of, as the event feeds of agents know it.
type HookMessageType string

// The messages about hooks.
const (
	HookCancelled           HookMessageType = "hook_cancelled"              // the call ended while the hook ran
	HookErrorInExecution    HookMessageType = "hook_error_during_execution" // the hook could not run
	HookStoppedContinuation HookMessageType = "hook_stopped_continuation"   // the hook wants the agent to stop
	HookPermissionDecision  HookMessageType = "hook_permission_decision"    // the hook had an opinion
	HookAdditionalContext   HookMessageType = "hook_additional_context"     // the hook had something to tell the model
)

// HookMessage is news of one hook for whoever watches.
type HookMessage struct {
	Type    HookMessageType `json:"type"`
	Hook    string          `json:"hook"`
	Opinion string          `json:"opinion,omitempty"` // allow, ask or deny
	Text    string          `json:"text,omitempty"`    // the reason, or the context; never an argument or an error's text
}

// Hooks is what the hooks of a call did.
type Hooks struct {
	Count    int           `json:"count"` // hooks that ran, or should have
	Messages []HookMessage `json:"messages,omitempty"`
	// Stop names the hook that wants the agent to stop, with StopReason.
	Stop       string `json:"stop,omitempty"`
	StopReason string `json:"stop_reason,omitempty"`
	// Opinion is the strictest of the hooks before the tool, By whose it is, Reason that hook's words. They and
	// Context, what the model is told beside the output, are for the worker that goes on with a call that was
	// parked or lost; a result leaves them out.
	Opinion string   `json:"opinion,omitempty"`
	By      string   `json:"by,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Context []string `json:"context,omitempty"`
}

// StopSummary is the hooks of a whole batch in its reply: present when a hook of it ran.
type StopSummary struct {
	StopHookSummary StopHookSummary `json:"stop_hook_summary"`
}

// StopHookSummary uses the names that agent frameworks know.
type StopHookSummary struct {
	HookCount             int           `json:"hookCount"`
	HookInfos             []HookMessage `json:"hookInfos"`
	HookErrors            []HookMessage `json:"hookErrors"`
	PreventedContinuation bool          `json:"preventedContinuation"`
	StopReason            string        `json:"stopReason,omitempty"`
}
