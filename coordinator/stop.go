package coordinator

import (
	"github.com/toolfleet/toolfleet/messages"
)

// stopSummary is what the hooks of a batch did, by its results in call order; nil when none of its calls met one. The
// agent is asked to stop where one hook wants it, and told the first one's reason.
func stopSummary(results []messages.Result) *messages.StopSummary {
	sum := messages.StopHookSummary{HookInfos: []messages.HookMessage{}, HookErrors: []messages.HookMessage{}}
	for _, r := range results {
		if r.Hooks == nil {
			continue
		}
		sum.HookCount += r.Hooks.Count
		sum.HookInfos = append(sum.HookInfos, r.Hooks.Messages...)
		for _, m := range r.Hooks.Messages {
			if m.Type == messages.HookErrorInExecution || m.Type == messages.HookCancelled {
				sum.HookErrors = append(sum.HookErrors, m)
			}
		}
		if r.Hooks.Stop != "" && !sum.PreventedContinuation {
			sum.PreventedContinuation, sum.StopReason = true, r.Hooks.StopReason
		}
	}
	if sum.HookCount == 0 {
		return nil
	}
	return &messages.StopSummary{StopHookSummary: sum}
}
