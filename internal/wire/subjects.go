package wire

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// BatchKey is the key of a batch: three tokens, safe in subjects.
type BatchKey struct{ Tenant, Session, Batch string }

// KeyOf returns the key of a batch with these ids under a tenant.
func KeyOf(tenant string, s messages.SessionID, b messages.BatchID) BatchKey {
	return BatchKey{tenant, messages.Token(s), messages.Token(b)}
}

func (k BatchKey) String() string { return k.Tenant + "." + k.Session + "." + k.Batch }

// Call returns the key of the call at index.
func (k BatchKey) Call(index int) CallKey { return CallKey{k, index} }

// CallKey is the key of one call of a batch.
type CallKey struct {
	BatchKey
	Index int
}

func (k CallKey) String() string { return k.BatchKey.String() + "." + strconv.Itoa(k.Index) }

// DefaultPrefix is the first token of every subject, unless the config has another.
const DefaultPrefix = "toolfleet"

// Names makes the names of all subjects, streams and buckets from one prefix. The zero
// value uses [DefaultPrefix].
type Names struct{ Prefix string }

func (n Names) prefix() string {
	if n.Prefix == "" {
		return DefaultPrefix
	}
	return n.Prefix
}

// Verb is the second token of a subject.
type Verb string

// The verbs. docs/protocol.md has those that agents use.
const (
	VerbBatch   Verb = "batch"
	VerbRun     Verb = "run"
	VerbGet     Verb = "get"
	VerbReply   Verb = "reply"
	VerbRefused Verb = "refused"
	VerbEvent   Verb = "event"
	VerbControl Verb = "control"
	VerbTools   Verb = "tools" // the definitions of tools, for a tenant: <t>
	VerbRead    Verb = "read"
	VerbWrite   Verb = "write"
	VerbCall    Verb = "call"
	VerbPlan    Verb = "plan"
	VerbHand    Verb = "hand"
	VerbCtl     Verb = "ctl"
	VerbResult  Verb = "result"
	VerbFinal   Verb = "final"
	VerbNotify  Verb = "notify"
	VerbQueue   Verb = "queue" // a worker asks for the consumer of a queue: <queue>
	VerbStop    Verb = "stop"
	VerbAudit   Verb = "audit"
	VerbDead    Verb = "dead"
)

// The verbs of approvals. They are spelt <prefix>.approval.<verb> and take two tokens.
const (
	VerbDecide Verb = "approval.decide" // a person's decision about a call: <t>.<s>.<b>.<i>
	VerbShow   Verb = "approval.show"   // one open question: <t>.<s>.<b>.<i>
	VerbNews   Verb = "approval.news"   // a question was opened or closed: <t>.<s>.<b>.<i>
	VerbList   Verb = "approval.list"   // the open questions of a tenant: <t>
)

// Of returns the subject of a message about a batch: <prefix>.<verb>.<t>.<s>.<b>.
func (n Names) Of(v Verb, k BatchKey) string {
	return n.prefix() + "." + string(v) + "." + k.String()
}

// OfCall returns the subject of a message about one call: <prefix>.<verb>.<t>.<s>.<b>.<i>.
func (n Names) OfCall(v Verb, k CallKey) string {
	return n.prefix() + "." + string(v) + "." + k.String()
}

// OfSession returns the subject of a message about a session: <prefix>.<verb>.<t>.<s>.
func (n Names) OfSession(v Verb, tenant, session string) string {
	return n.prefix() + "." + string(v) + "." + tenant + "." + session
}

// Lane returns the subject of a job in the queue with this token. exclusive chooses the
// session's lane of writes. Otherwise it is the shared lane of reads.
func (n Names) Lane(exclusive bool, queue string, k CallKey) string {
	v := VerbRead
	if exclusive {
		v = VerbWrite
	}
	return n.prefix() + "." + string(v) + "." + queue + "." + k.String()
}

// QueueOf returns two filters for the jobs in the queue with this token.
func (n Names) QueueOf(queue string) []string {
	return []string{n.prefix() + "." + string(VerbRead) + "." + queue + ".>", n.prefix() + "." + string(VerbWrite) + "." + queue + ".>"}
}

// JobOf returns two filters for the jobs of a call, in every queue.
func (n Names) JobOf(k CallKey) []string {
	return []string{n.Lane(false, "*", k), n.Lane(true, "*", k)}
}

// Job returns the queue and the call from the subject of a job.
func (n Names) Job(subject string) (queue string, k CallKey, err error) {
	rest, ok := strings.CutPrefix(subject, n.prefix()+".")
	verb, rest, _ := strings.Cut(rest, ".")
	queue, rest, _ = strings.Cut(rest, ".")
	if !ok || PoolOf(queue) == "" || verb != string(VerbRead) && verb != string(VerbWrite) {
		return "", CallKey{}, fmt.Errorf("subject %.200q is none of a job", subject)
	}
	_, k, err = n.Call(n.prefix() + "." + verb + "." + rest)
	return queue, k, err
}

// JobsOf returns two filters for the jobs of a batch, in every queue.
func (n Names) JobsOf(k BatchKey) []string {
	return []string{
		n.prefix() + "." + string(VerbRead) + ".*." + k.String() + ".*",
		n.prefix() + "." + string(VerbWrite) + ".*." + k.String() + ".*",
	}
}

// Notify returns the subject on which a coordinator gets notices about its batches.
func (n Names) Notify(coordinator string) string {
	return n.prefix() + "." + string(VerbNotify) + "." + coordinator
}

// Coordinators returns the subject of notices between coordinators: which batches they drive,
// and which sessions have a new control.
func (n Names) Coordinators() string { return n.Notify("coordinators") }

// span is the length of one period of the audit log. Batches of a session that were accepted
// in the same period share a subject.
const span = 10 * time.Minute

// Ended returns the audit subject for the lines about a session's calls:
// <prefix>.audit.<t>.<s>.ended.<n>.lines. n counts ten minutes since 1970, by the log's clock.
// Batches that were accepted in the same ten minutes share the subject.
func (n Names) Ended(tenant, session string, accepted time.Time) string {
	return n.OfSession(VerbAudit, tenant, session) + ".ended." + strconv.FormatInt(accepted.Unix()/int64(span/time.Second), 10) + ".lines"
}

// Aside returns the overflow subject of a batch in the audit log:
// <prefix>.audit.<t>.<s>.<b>.refused.aside. It gets the refusal of a batch whose id was used
// before. It also gets the lines of a batch that are still missing when lines of later batches
// are stored.
func (n Names) Aside(k BatchKey) string { return n.Of(VerbAudit, k) + ".refused.aside" }

// Question returns the audit subject for a coordinator's lines about an open call:
// <prefix>.audit.<t>.<s>.<b>.<i>.question. The lines say what was asked, decided and refused.
// Workers may write to the subject without the last token, and not to this one.
func (n Names) Question(k CallKey) string { return n.OfCall(VerbAudit, k) + ".question" }

// Ours reports whether a subject belongs to this fleet.
func (n Names) Ours(subject string) bool {
	return strings.HasPrefix(subject, n.prefix()+".") || strings.HasPrefix(subject, "$")
}

// Dead returns the subject of dead letters.
func (n Names) Dead() string { return n.prefix() + "." + string(VerbDead) + ".set-aside" }

// Queue returns the subject on which a worker asks a coordinator for the consumer of a queue.
func (n Names) Queue(token string) string {
	return n.prefix() + "." + string(VerbQueue) + "." + token
}

// QueueIn returns the queue token from a subject that [Names.Queue] made.
func (n Names) QueueIn(subject string) (token string, err error) {
	token, ok := strings.CutPrefix(subject, n.Queue(""))
	if !ok || PoolOf(token) == "" {
		return "", fmt.Errorf("subject %.200q names no queue", subject)
	}
	return token, nil
}

// All returns the filter for everything under a verb, for example toolfleet.call.>.
func (n Names) All(v Verb) string { return n.prefix() + "." + string(v) + ".>" }

// EveryBatch returns the filter for all batches under a verb. It ends with exactly three
// tokens and not with ">", so that subjects with more tokens do not match.
func (n Names) EveryBatch(v Verb) string { return n.prefix() + "." + string(v) + ".*.*.*" }

// Stream returns the name of a stream or of the object bucket: TOOLFLEET_BATCHES.
func (n Names) Stream(name string) string { return strings.ToUpper(n.prefix()) + "_" + name }

// Batch returns the key from a subject of the form <prefix>.<verb>.<t>.<s>.<b>.
func (n Names) Batch(subject string) (Verb, BatchKey, error) {
	rest, ok := strings.CutPrefix(subject, n.prefix()+".")
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 4 {
		return "", BatchKey{}, fmt.Errorf("subject %.200q is not %s.<verb>.<tenant>.<session>.<batch>", subject, n.prefix())
	}
	for _, p := range parts[1:] {
		if !messages.IsToken(p) {
			return "", BatchKey{}, fmt.Errorf("subject %.200q: %.80q is not a token ([A-Za-z0-9_-]{1,64}, or = and 43 characters of base64url)", subject, p)
		}
	}
	return Verb(parts[0]), BatchKey{parts[1], parts[2], parts[3]}, nil
}

// Session returns tenant and session from a subject of the form <prefix>.<verb>.<t>.<s>.
func (n Names) Session(subject string) (tenant, session string, err error) {
	rest, ok := strings.CutPrefix(subject, n.prefix()+".")
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 3 || !messages.IsToken(parts[1]) || !messages.IsToken(parts[2]) {
		return "", "", fmt.Errorf("subject %.200q is not %s.<verb>.<tenant>.<session> with two tokens", subject, n.prefix())
	}
	return parts[1], parts[2], nil
}

// EverySession returns the filter for all sessions under a verb. It ends with exactly two
// tokens.
func (n Names) EverySession(v Verb) string { return n.prefix() + "." + string(v) + ".*.*" }

// EveryCall returns the filter for all calls under a verb. It ends with exactly four tokens.
func (n Names) EveryCall(v Verb) string { return n.prefix() + "." + string(v) + ".*.*.*.*" }

// OfTenant returns the subject of a message about a whole tenant: <prefix>.<verb>.<t>.
func (n Names) OfTenant(v Verb, tenant string) string {
	return n.prefix() + "." + string(v) + "." + tenant
}

// Approval returns the key of the call from a subject of [VerbDecide], [VerbShow] or
// [VerbNews].
func (n Names) Approval(subject string) (CallKey, error) {
	rest, ok := strings.CutPrefix(subject, n.prefix()+".approval.")
	if !ok {
		return CallKey{}, fmt.Errorf("subject %.200q is none about approvals", subject)
	}
	_, key, err := n.Call(n.prefix() + "." + rest)
	return key, err
}

// Call returns the key from a subject of the form <prefix>.<verb>.<t>.<s>.<b>.<i>.
func (n Names) Call(subject string) (Verb, CallKey, error) {
	dot := strings.LastIndexByte(subject, '.')
	if dot < 0 {
		return "", CallKey{}, fmt.Errorf("subject %.200q names no call", subject)
	}
	v, k, err := n.Batch(subject[:dot])
	if err != nil {
		return "", CallKey{}, err
	}
	index, err := strconv.Atoi(subject[dot+1:])
	if err != nil || index < 0 || strconv.Itoa(index) != subject[dot+1:] {
		return "", CallKey{}, fmt.Errorf("subject %.200q: %.20q is no call index", subject, subject[dot+1:])
	}
	return v, k.Call(index), nil
}
