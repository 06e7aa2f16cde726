package wire

import (
	"strconv"

	"github.com/toolfleet/toolfleet/messages"
)

func appendAuditLines(b []byte, l *AuditLines) []byte {
	o := newObject(b)
	o.number("v", int64(l.V))
	o.text("token", l.Token)
	o.name("seq")
	o = strconv.AppendUint(o, l.Seq, 10)
	o.name("about")
	o = appendAuditRecord(o, &l.About)
	if len(l.Earlier) > 0 {
		o.rare("earlier", l.Earlier)
	}
	o.someFlag("last", l.Last)
	o.name("lines")
	if l.Lines == nil {
		o = append(o, "null"...)
	} else {
		o = appendList(o, l.Lines, appendAuditRecord)
	}
	return o.end()
}

func appendAuditRecord(b []byte, r *messages.AuditRecord) []byte {
	o := newObject(b)
	o.number("v", int64(r.V))
	o.text("type", string(r.Type))
	o.time("time", r.Time)
	o.someText("tenant", string(r.Tenant))
	o.someText("session", string(r.Session))
	o.someText("batch", string(r.Batch))
	o.number("index", int64(r.Index))
	o.someText("call_id", string(r.CallID))
	o.someText("tool", r.Tool)
	o.someText("tool_digest", r.ToolDigest)
	o.someText("args_hash", r.ArgsHash)
	o.someText("original", r.Original)
	if r.Permission != nil {
		o.name("permission")
		o = appendPermission(o, r.Permission)
	}
	o.someText("approval", r.Approval)
	if r.Decision != nil {
		o.rare("decision", r.Decision)
	}
	if r.Refusal != nil {
		o.rare("refusal", r.Refusal)
	}
	o.someText("writer", r.Writer)
	o.someText("doubt", r.Doubt)
	o.someText("trace_id", r.TraceID)
	o.someText("digest", r.Digest)
	o.someText("provider", string(r.Provider))
	o.someNumber("round", int64(r.Round))
	if r.Principal != nil {
		o.rare("principal", r.Principal)
	}
	if len(r.Labels) > 0 {
		o.rare("labels", r.Labels)
	}
	o.someText("kind", string(r.Kind))
	o.someText("status", string(r.Status))
	o.someText("code", string(r.Code))
	o.someFlag("retryable", r.Retryable)
	o.someNumber("attempt", int64(r.Attempt))
	o.someText("worker", r.Worker)
	o.someTime("accepted", r.Accepted)
	o.someTime("started", r.Started)
	o.someFloat("queue_ms", r.QueueMS)
	o.someFloat("duration_ms", r.DurationMS)
	if r.PhasesMS != (messages.PhasesMS{}) {
		o.name("phases_ms")
		o = appendPhases(o, r.PhasesMS)
	}
	o.someText("result_hash", r.ResultHash)
	o.someText("tool_hash", r.ToolHash)
	if len(r.Arguments) > 0 {
		o.rare("arguments", r.Arguments)
	}
	return o.end()
}
