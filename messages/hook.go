package messages

// HookMessageType is what a [HookMessage] is about, in the names that event feeds of agents use.
type HookMessageType string

// The messages about hooks.
const (
	// HookCancelled: the call ended while the hook ran.
	HookCancelled HookMessageType = "hook_cancelled"
	// HookErrorInExecution: the hook could not run.
	HookErrorInExecution HookMessageType = "hook_error_during_execution"
	// HookStoppedContinuation: the hook wants the agent to stop.
	HookStoppedContinuation HookMessageType = "hook_stopped_continuation"
	// HookPermissionDecision: the hook had an opinion whether the call may run.
	HookPermissionDecision HookMessageType = "hook_permission_decision"
	// HookAdditionalContext: the hook had something to tell the model.
	HookAdditionalContext HookMessageType = "hook_additional_context"
)

// HookMessage says what one hook did, for watchers.
type HookMessage struct {
	Type    HookMessageType `json:"type"`
	Hook    string          `json:"hook"`
	Opinion string          `json:"opinion,omitempty"` // [EffectAllow], [EffectAsk] or [EffectDeny]
	// Text is the reason, or the context. It is never an argument or an error's text.
	Text string `json:"text,omitempty"`
}

// Hooks is what the hooks of a call did.
type Hooks struct {
	Count    int           `json:"count"` // hooks that ran, or failed to run
	Messages []HookMessage `json:"messages,omitempty"`
	// Stop names the hook that wants the agent to stop; StopReason is its reason.
	Stop       string `json:"stop,omitempty"`
	StopReason string `json:"stop_reason,omitempty"`
	// Opinion is the strictest opinion of the hooks before the tool. By names that hook, and Reason
	// is its text. Context is what the model reads beside the output. A result leaves these four
	// out: they are for another worker that continues the call.
	Opinion string   `json:"opinion,omitempty"`
	By      string   `json:"by,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Context []string `json:"context,omitempty"`
}

// StopSummary sums up the hooks of a whole batch in its reply. It is present when a hook ran.
type StopSummary struct {
	StopHookSummary StopHookSummary `json:"stop_hook_summary"`
}

// StopHookSummary uses the member names that agent frameworks know.
type StopHookSummary struct {
	HookCount             int           `json:"hookCount"`
	HookInfos             []HookMessage `json:"hookInfos"`
	HookErrors            []HookMessage `json:"hookErrors"`
	PreventedContinuation bool          `json:"preventedContinuation"`
	StopReason            string        `json:"stopReason,omitempty"`
}
