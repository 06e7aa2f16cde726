package audit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Batch is what is known of a batch that has come to its end.
type Batch struct {
	Key      messages.BatchKey
	Session  messages.SessionID // as the agent wrote it; "": not known
	ID       messages.BatchID   // the same
	Digest   string             // hex SHA-256
	Provider messages.Provider
	Round    int
	Accepted time.Time
	TraceID  string
	Writer   string
	Now      time.Time
	Refused  messages.Class // as a whole, so; "": it was not
}

// Call is what is known of one of its calls.
type Call struct {
	Result     messages.Result
	ToolDigest string
	// Input is the arguments as they ran, or as they were sent where nothing ran; nil: not known.
	Input json.RawMessage
	// ArgsHash is the hex SHA-256 of Input's canonical form where that is known otherwise, for a result without a trail.
	ArgsHash string
}

// Lines is one line for each call, behind that of the batch where it was refused. That says the class and not why, which may
// quote what the agent sent.
func Lines(b Batch, calls []Call, hash Hasher, include Include) messages.AuditLines {
	all := ofBatch(b, hash)
	for _, c := range calls {
		all.Lines = append(all.Lines, line(b, c, hash, include))
	}
	return all
}

// Bare is Lines with no more than which calls there were and how they ended: for what cannot be put on record otherwise.
func Bare(b Batch, results []messages.Result, hash Hasher) messages.AuditLines {
	b.Session, b.ID, b.Provider, b.Writer = cut(b.Session), cut(b.ID), cut(b.Provider), cut(b.Writer)
	all := ofBatch(b, hash)
	for _, r := range results {
		all.Lines = append(all.Lines, bare(messages.AuditRecord{
			V: messages.Version, Type: messages.AuditCall, Time: b.Now, Index: r.Index, CallID: r.CallID, Tool: r.Tool, Status: r.Status, Attempt: r.Attempt,
		}))
	}
	return all
}

// bare is a line without anything that may be long.
func bare(l messages.AuditRecord) messages.AuditRecord {
	return messages.AuditRecord{
		V: l.V, Type: l.Type, Time: l.Time, Index: l.Index, CallID: cut(l.CallID), Tool: cut(l.Tool), Status: cut(l.Status), Attempt: max(l.Attempt, 0),
		Refusal: l.Refusal,
	}
}

// longest is how long a word in a bare line may be, in bytes.
const longest = 200

func cut[T ~string](text T) T { return text[:min(len(text), longest)] }

// ofBatch is the record of a batch without its calls.
func ofBatch(b Batch, hash Hasher) messages.AuditLines {
	tenant := messages.TenantID(b.Key.Tenant)
	all := messages.AuditLines{V: messages.Version, Lines: []messages.AuditRecord{}, About: messages.AuditRecord{
		V: messages.Version, Type: messages.AuditCall, Time: b.Now, Index: -1, Tenant: tenant,
		Session: cmp.Or(b.Session, messages.SessionID(b.Key.Session)), Batch: cmp.Or(b.ID, messages.BatchID(b.Key.Batch)),
		Digest: hash.Of(tenant, b.Digest), Provider: b.Provider, Round: b.Round, Accepted: b.Accepted, TraceID: b.TraceID, Writer: b.Writer,
	}}
	if b.Refused != "" {
		all.Lines = append(all.Lines, messages.AuditRecord{
			V: messages.Version, Type: messages.AuditBatchRefused, Time: b.Now, Index: -1, Refusal: &messages.Refusal{Class: b.Refused},
		})
	}
	return all
}

func line(b Batch, c Call, hash Hasher, include Include) messages.AuditRecord {
	tenant, r := messages.TenantID(b.Key.Tenant), c.Result
	l := messages.AuditRecord{
		V: messages.Version, Type: messages.AuditCall, Time: b.Now, Index: r.Index, CallID: r.CallID, Tool: r.Tool, ToolDigest: c.ToolDigest, Kind: r.Kind,
		Status: r.Status, Attempt: max(r.Attempt, 0), Worker: r.Worker, Permission: r.Permission, QueueMS: sane(r.QueueMS), DurationMS: sane(r.DurationMS),
	}
	if r.Err != nil {
		l.Code = r.Err.Code
	}
	if r.Permission != nil {
		l.Approval = r.Permission.Approval
	}
	if !r.Started.IsZero() && r.Started.Sub(b.Now).Abs() < absurd {
		l.Started = r.Started
	}
	if !l.Started.IsZero() && l.DurationMS > 0 { // else nobody says how long it took
		l.Time = r.Started.Add(time.Duration(l.DurationMS * float64(time.Millisecond)))
	}
	ran := c.ArgsHash
	if t := r.Trail; t != nil {
		ran = cmp.Or(t.ArgsHash, ran)
		l.PhasesMS = messages.PhasesMS{
			Validate: sane(t.PhasesMS.Validate), Semantic: sane(t.PhasesMS.Semantic), PreHooks: sane(t.PhasesMS.PreHooks),
			Permissions: sane(t.PhasesMS.Permissions), Execute: sane(t.PhasesMS.Execute), PostHooks: sane(t.PhasesMS.PostHooks),
		}
		l.ResultHash, l.ToolHash = hash.Of(tenant, t.ResultHash), hash.Of(tenant, t.ToolHash)
		if b.TraceID == "" {
			l.TraceID = TraceOf(t.Span)
		}
	}
	if r.Attempt > 0 && r.Trail == nil && ran == "" { // it may have run, and with other arguments than were sent
		return l
	}
	shows := include.Wants(l.Tool)
	if ran == "" || shows {
		sent := digestOf(c.Input)
		ran = cmp.Or(ran, sent)
		if shows && sent != "" && sent == ran { // never fields of other arguments than the hash is of
			l.Arguments = include.of(l.Tool, c.Input)
		}
	}
	l.ArgsHash = hash.Of(tenant, ran)
	return l
}

// absurd is longer than anything of a call takes. What workers say beyond it is not believed: a number that is too large for
// a time must not keep a batch from its record.
const absurd = 366 * 24 * time.Hour

// sane is milliseconds within bounds.
func sane(ms float64) float64 {
	return min(max(ms, 0), float64(absurd/time.Millisecond))
}

// digestOf is the hex SHA-256 of arguments in canonical form; "" for what are none.
func digestOf(input json.RawMessage) string {
	canonical, err := messages.CanonicalJSON(input)
	if err != nil || len(canonical) == 0 || canonical[0] != '{' {
		return ""
	}
	return messages.Digest(canonical)
}

// TraceOf is the trace that a traceparent belongs to; "" where it is none.
func TraceOf(traceparent string) string {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || !traceID.MatchString(parts[1]) || parts[1] == strings.Repeat("0", 32) {
		return ""
	}
	return parts[1]
}

var traceID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Include is the fields of arguments that lines show, by tool; "*" is for every tool.
type Include map[string][]string

var includeEntry = regexp.MustCompile(`^(\*|[a-zA-Z0-9_-]+)\.(.+)$`)

// ParseInclude reads entries of the form TOOL.FIELD or *.FIELD, where the field is one of the outermost.
func ParseInclude(entries []string) (Include, error) {
	include := Include{}
	var errs []error
	for _, entry := range entries {
		parts := includeEntry.FindStringSubmatch(entry)
		if parts == nil {
			errs = append(errs, fmt.Errorf("audit.include: %.80q is neither TOOL.FIELD nor *.FIELD", entry))
			continue
		}
		include[parts[1]] = append(include[parts[1]], parts[2])
	}
	return include, errors.Join(errs...)
}

// Wants reports whether lines about a tool show anything of its arguments.
func (i Include) Wants(tool string) bool { return len(i["*"])+len(i[tool]) > 0 }

// maxField is the longest value that is shown, in bytes.
const maxField = 4 << 10

func (i Include) of(tool string, input json.RawMessage) map[string]json.RawMessage {
	if !i.Wants(tool) {
		return nil
	}
	members, err := messages.Object(input)
	if err != nil {
		return nil
	}
	shown := map[string]json.RawMessage{}
	for _, field := range slices.Concat(i["*"], i[tool]) {
		value, has := members[field]
		if len(value) > maxField {
			value = messages.Quote(fmt.Sprintf("(%d bytes, too long to be shown)", len(value)))
		}
		if has {
			shown[field] = value
		}
	}
	if len(shown) == 0 {
		return nil
	}
	return shown
}
