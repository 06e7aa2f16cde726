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
	Digest   string
	Provider messages.Provider
	Round    int
	Accepted time.Time
	TraceID  string
	Writer   string
	Now      time.Time
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

// Lines is one line for each call.
func Lines(b Batch, calls []Call, hash Hasher, include Include) []messages.AuditRecord {
	lines := make([]messages.AuditRecord, len(calls))
	for i, c := range calls {
		lines[i] = line(b, c, hash, include)
	}
	return lines
}

// Refused is the line of a batch of which no call was meant to run. It says the class and not why: that may quote what the
// agent sent.
func Refused(b Batch, class messages.Class) messages.AuditRecord {
	r := about(b)
	r.Type, r.Index, r.Refusal = messages.AuditBatchRefused, -1, &messages.Refusal{Class: class}
	return r
}

// about is what all lines of a batch have in common.
func about(b Batch) messages.AuditRecord {
	return messages.AuditRecord{
		V: messages.Version, Type: messages.AuditCall, Time: b.Now, Tenant: messages.TenantID(b.Key.Tenant),
		Session: cmp.Or(b.Session, messages.SessionID(b.Key.Session)), Batch: cmp.Or(b.ID, messages.BatchID(b.Key.Batch)),
		Digest: b.Digest, Provider: b.Provider, Round: b.Round, Accepted: b.Accepted, TraceID: b.TraceID, Writer: b.Writer,
	}
}

func line(b Batch, c Call, hash Hasher, include Include) messages.AuditRecord {
	l, r := about(b), c.Result
	l.Index, l.CallID, l.Tool, l.ToolDigest, l.Kind = r.Index, r.CallID, r.Tool, c.ToolDigest, r.Kind
	l.Status, l.Attempt, l.Worker, l.Permission = r.Status, r.Attempt, r.Worker, r.Permission
	l.Started, l.QueueMS, l.DurationMS = r.Started, r.QueueMS, r.DurationMS
	if r.Err != nil {
		l.Code = r.Err.Code
	}
	if r.Permission != nil {
		l.Approval = r.Permission.Approval
	}
	if !r.Started.IsZero() {
		l.Time = r.Started.Add(time.Duration(r.DurationMS * float64(time.Millisecond)))
	}
	ran := c.ArgsHash
	if t := r.Trail; t != nil {
		ran = cmp.Or(t.ArgsHash, ran)
		l.PhasesMS = t.PhasesMS
		l.ResultHash, l.ToolHash = hash.Of(l.Tenant, t.ResultHash), hash.Of(l.Tenant, t.ToolHash)
		l.TraceID = cmp.Or(l.TraceID, TraceOf(t.Span))
	}
	shows := include.Wants(l.Tool)
	if ran == "" || shows {
		sent := digestOf(c.Input)
		ran = cmp.Or(ran, sent)
		if shows && sent != "" && sent == ran { // never fields of other arguments than the hash is of
			l.Arguments = include.of(l.Tool, c.Input)
		}
	}
	l.ArgsHash = hash.Of(l.Tenant, ran)
	return l
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
