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

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Batch is what the lines need to know about a batch that has ended.
type Batch struct {
	Key      wire.BatchKey
	Session  messages.SessionID // as the agent wrote it; "" if unknown
	ID       messages.BatchID   // as the agent wrote it; "" if unknown
	Digest   string             // hex SHA-256
	Provider messages.Provider
	Round    int
	User     string // the user for whom the batch ran; "" if unknown
	Labels   map[string]string
	Accepted time.Time
	TraceID  string
	Writer   string
	Now      time.Time
	Refused  messages.Class // why the whole batch was refused; "" if it was not
}

// Call is what the lines need to know about one call of the batch.
type Call struct {
	Result     messages.Result
	ToolDigest string
	// Input has the arguments that ran, or those that were sent if nothing ran. It is nil if
	// the arguments are unknown.
	Input json.RawMessage
	// ArgsHash is the hex SHA-256 of Input in canonical form, or "" if unknown. It is used for
	// a result without a trail.
	ArgsHash string
}

// Lines makes one line for each call. If the batch was refused, the first line says so. That
// line has the class and no message, because a message may quote what the agent sent.
func Lines(b Batch, calls []Call, hasher Hasher, include Include) wire.AuditLines {
	hash := hasher.in(messages.TenantID(b.Key.Tenant))
	all := ofBatch(b, hash)
	all.Lines = slices.Grow(all.Lines, len(calls))
	for _, c := range calls {
		all.Lines = append(all.Lines, line(b, c, hash, include))
	}
	return all
}

// Bare is like Lines, but its lines only say which calls the batch had and how they ended. It
// is for a batch whose full lines cannot be stored.
func Bare(b Batch, results []messages.Result, hasher Hasher) wire.AuditLines {
	b.Session, b.ID, b.Provider, b.Writer = cut(b.Session), cut(b.ID), cut(b.Provider), cut(b.Writer)
	b.Labels = nil
	all := ofBatch(b, hasher.in(messages.TenantID(b.Key.Tenant)))
	for _, r := range results {
		all.Lines = append(all.Lines, bare(messages.AuditRecord{
			V: messages.Version, Type: messages.AuditCall, Time: b.Now, Index: r.Index, CallID: r.CallID, Tool: r.Tool, Status: r.Status, Attempt: r.Attempt,
		}))
	}
	return all
}

// bare returns a line without the members that may be long.
func bare(l messages.AuditRecord) messages.AuditRecord {
	return messages.AuditRecord{
		V: l.V, Type: l.Type, Time: l.Time, Index: l.Index, CallID: cut(l.CallID), Tool: cut(l.Tool), Status: cut(l.Status), Attempt: max(l.Attempt, 0),
		Refusal: l.Refusal,
	}
}

// longest is the limit of a text in a bare line, in bytes.
const longest = 200

func cut[T ~string](text T) T { return text[:min(len(text), longest)] }

// ofBatch returns the audit lines of a batch without the lines about its calls.
func ofBatch(b Batch, hash tenantHasher) wire.AuditLines {
	tenant := messages.TenantID(b.Key.Tenant)
	all := wire.AuditLines{V: messages.Version, Lines: []messages.AuditRecord{}, About: messages.AuditRecord{
		V: messages.Version, Type: messages.AuditCall, Time: b.Now, Index: -1, Tenant: tenant,
		Session: cmp.Or(b.Session, messages.SessionID(b.Key.Session)), Batch: cmp.Or(b.ID, messages.BatchID(b.Key.Batch)),
		Digest: hash.of(b.Digest), Provider: b.Provider, Round: b.Round, Accepted: b.Accepted, TraceID: b.TraceID, Writer: b.Writer,
		Labels: b.Labels,
	}}
	if b.User != "" {
		all.About.Principal = &messages.Principal{Tenant: tenant, User: b.User}
	}
	if b.Refused != "" {
		all.Lines = append(all.Lines, messages.AuditRecord{
			V: messages.Version, Type: messages.AuditBatchRefused, Time: b.Now, Index: -1, Refusal: &messages.Refusal{Class: b.Refused},
		})
	}
	return all
}

// line returns the line of one call. It has the hash of the arguments that ran. If it is
// certain that nothing ran, it has the hash of the arguments that were sent.
func line(b Batch, c Call, hash tenantHasher, include Include) messages.AuditRecord {
	r := c.Result
	l := messages.AuditRecord{
		V: messages.Version, Type: messages.AuditCall, Time: b.Now, Index: r.Index, CallID: r.CallID, Tool: r.Tool, ToolDigest: c.ToolDigest, Kind: r.Kind,
		Status: r.Status, Attempt: max(r.Attempt, 0), Worker: r.Worker, Permission: r.Permission, QueueMS: sane(r.QueueMS), DurationMS: sane(r.DurationMS),
	}
	if r.Err != nil {
		l.Code, l.Retryable = r.Err.Code, r.Err.Retryable
	}
	if r.Permission != nil {
		l.Approval = r.Permission.Approval
	}
	if !r.Started.IsZero() && r.Started.Sub(b.Now).Abs() < implausible {
		l.Started = r.Started
	}
	if !l.Started.IsZero() && l.DurationMS > 0 { // otherwise the duration is unknown
		l.Time = r.Started.Add(time.Duration(l.DurationMS * float64(time.Millisecond)))
	}
	ran := c.ArgsHash
	if t := r.Trail; t != nil {
		ran = cmp.Or(t.ArgsHash, ran)
		l.PhasesMS = messages.PhasesMS{
			Validate: sane(t.PhasesMS.Validate), Semantic: sane(t.PhasesMS.Semantic), PreHooks: sane(t.PhasesMS.PreHooks),
			Permissions: sane(t.PhasesMS.Permissions), Execute: sane(t.PhasesMS.Execute), PostHooks: sane(t.PhasesMS.PostHooks),
		}
		l.ResultHash, l.ToolHash = hash.of(t.ResultHash), hash.of(t.ToolHash)
		if b.TraceID == "" {
			l.TraceID = TraceOf(t.Span)
		}
	}
	// The call may have run with other arguments than those that were sent, so the line has no
	// hash.
	if r.Attempt > 0 && r.Trail == nil && ran == "" {
		return l
	}
	shows := include.Wants(l.Tool)
	if ran == "" || shows {
		sent := digestOf(c.Input)
		ran = cmp.Or(ran, sent)
		// The fields must be those of the arguments with this hash.
		if shows && sent != "" && sent == ran {
			l.Arguments = include.of(l.Tool, c.Input)
		}
	}
	l.ArgsHash = hash.of(ran)
	return l
}

// implausible is longer than any part of a call takes. A longer time that a worker reports is
// cut or dropped: if a number does not fit into a duration, the lines of the batch cannot be
// stored.
const implausible = 366 * 24 * time.Hour

// sane limits milliseconds to the range from 0 to implausible.
func sane(ms float64) float64 {
	return min(max(ms, 0), float64(implausible/time.Millisecond))
}

// digestOf returns the hex SHA-256 of arguments in canonical form, or "" if they are not an
// object.
func digestOf(input json.RawMessage) string {
	canonical, err := rawjson.Canonical(input)
	if err != nil || len(canonical) == 0 || canonical[0] != '{' {
		return ""
	}
	return messages.Digest(canonical)
}

// TraceOf returns the trace id in a traceparent, or "".
func TraceOf(traceparent string) string {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || !traceID.MatchString(parts[1]) || parts[1] == strings.Repeat("0", 32) {
		return ""
	}
	return parts[1]
}

var traceID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Include lists the argument fields that lines have, by tool. "*" stands for every tool.
type Include map[string][]string

var includeEntry = regexp.MustCompile(`^(\*|[a-zA-Z0-9_-]+)\.(.+)$`)

// ParseInclude reads entries of the form TOOL.FIELD or *.FIELD. FIELD is a top-level member
// of the arguments.
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

// Wants reports whether lines about a tool have fields of its arguments.
func (i Include) Wants(tool string) bool { return len(i["*"])+len(i[tool]) > 0 }

// maxField is the size of the largest value in a line, in bytes. A note with its size replaces
// a larger value.
const maxField = 4 << 10

// of returns the listed fields of a tool's arguments, or nil.
func (i Include) of(tool string, input json.RawMessage) map[string]json.RawMessage {
	if !i.Wants(tool) {
		return nil
	}
	members, err := rawjson.Object(input)
	if err != nil {
		return nil
	}
	shown := map[string]json.RawMessage{}
	for _, field := range slices.Concat(i["*"], i[tool]) {
		value, has := members[field]
		if len(value) > maxField {
			value = rawjson.Quote(fmt.Sprintf("(%d bytes, too long to be shown)", len(value)))
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
