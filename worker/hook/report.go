package hook

import "github.com/toolfleet/toolfleet/messages"

// Report returns what the hooks did, in the form that is stored with the call. It includes
// the opinion and the context, because another worker may continue the call. It is nil if
// no hook matched.
func (r Result) Report() *messages.Hooks {
	if r.Count == 0 {
		return nil
	}
	return &messages.Hooks{
		Count: r.Count, Messages: r.Messages, Stop: r.Stop, StopReason: r.StopReason,
		Opinion: string(r.Opinion), By: r.By, Reason: r.Reason, Context: r.Context,
	}
}

// Reported turns a stored report back into a Result, for a call that was parked or lost
// after its hooks had run. The Result has no Input, because the changes are already in the
// call's frozen input.
func Reported(h *messages.Hooks) Result {
	if h == nil {
		return Result{}
	}
	return Result{
		Count: h.Count, Messages: h.Messages, Stop: h.Stop, StopReason: h.StopReason,
		Opinion: Opinion(h.Opinion), By: h.By, Reason: h.Reason, Context: h.Context,
	}
}

// Summary returns what a call's result shows of its hooks, before and after the tool. It is nil if
// no hook matched.
func Summary(before, after Result) *messages.Hooks {
	if before.Count+after.Count == 0 {
		return nil
	}
	sum := messages.Hooks{Count: before.Count + after.Count, Stop: before.Stop, StopReason: before.StopReason}
	sum.Messages = append(append(sum.Messages, before.Messages...), after.Messages...)
	if sum.Stop == "" {
		sum.Stop, sum.StopReason = after.Stop, after.StopReason
	}
	return &sum
}
