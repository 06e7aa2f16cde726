package wire

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Job carries one call to the workers of a pool. A job is only a pointer: the worker reads in
// the call's journal what to do.
type Job struct {
	V          int                `json:"v"`
	Tenant     messages.TenantID  `json:"tenant"`
	Session    messages.SessionID `json:"session"`
	Batch      messages.BatchID   `json:"batch"`
	BodyDigest string             `json:"digest"` // of the batch's body
	Index      int                `json:"index"`
	CallID     messages.CallID    `json:"call_id"`
	Tool       string             `json:"tool"`
	// ToolDigest is the digest of the tool definition with which the call was planned. A
	// worker that has only other definitions gives the job up.
	ToolDigest      string          `json:"tool_digest"`
	Kind            messages.Kind   `json:"kind"`
	ConcurrencySafe bool            `json:"concurrency_safe"`
	Input           json.RawMessage `json:"input"`
	Notify          string          `json:"notify"` // the coordinator that gets the notices about the call
	// Dispatch is how many times the coordinator has published this job before. If it is not
	// 0, the worker reads the journal before it starts anything.
	Dispatch int `json:"dispatch"`
	// TakeOver is the sequence of the record that the next claim must follow, or 0 if the call
	// has no record. That record is the lapsed claim of a tool that may run again, the release
	// of a failed attempt, or the answer of a person.
	TakeOver uint64 `json:"take_over,omitempty"`
	// Attempt counts the earlier attempts of a call that runs without a claim.
	Attempt  int       `json:"attempt,omitempty"`
	QueuedAt time.Time `json:"queued_at"`
	// NotAfter is the end of the batch's life, by the server's clock. No call starts after it.
	NotAfter time.Time `json:"not_after"`
	// DeadlineMS limits the run to what is left of the batch's active time. 0: only the tool's
	// own timeout limits it.
	DeadlineMS int64 `json:"deadline_ms,omitempty"`
	Round      int   `json:"round,omitempty"`
	// User is the user for whom the call runs, or "" if unknown. Labels are the labels of the
	// batch.
	User   string            `json:"user,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Policy is the version of the coordinator's policy, or "" if it has none. A worker that
	// has no policy gives up a job with a Policy.
	Policy string `json:"policy,omitempty"`
	// Unwatched says that nobody listened to the events of the batch when the job was
	// published.
	Unwatched bool `json:"unwatched,omitempty"`
}

// PolicyOfTools separates the two parts of a worker's policy version: the version of the
// platform's policy, and the version of the rules in the tools file.
const PolicyOfTools = "+"

// PlatformPolicy returns the part of a policy version that must be the same for coordinators
// and workers. The other part is of a tools file, which coordinators do not read.
func PlatformPolicy(version string) string {
	platform, _, _ := strings.Cut(version, PolicyOfTools)
	return platform
}

// Notice tells the coordinator that drives a batch what is now stored about a call, or what
// happened to its job. A notice only saves a read of the journal: if it is lost, the next poll
// finds the same news.
type Notice struct {
	V      int              `json:"v"`
	Batch  string           `json:"batch"` // the BatchKey as text
	Index  int              `json:"index"`
	Result *messages.Result `json:"result,omitempty"`
	// Record is the newest record of the call (a claim, its renewal, a release). Seq is the
	// sequence of that record.
	Record *CallRecord `json:"record,omitempty"`
	Seq    uint64      `json:"seq,omitempty"`
	// Running in a worker's notice says that the worker runs the call. In a coordinator's
	// notice it says that the coordinator drives the batch.
	Running bool `json:"running,omitempty"`
	// AsksDriver asks the other coordinators which of them drives this batch, or this session
	// if Batch names a session. The driver answers with a Notice with Running. After a
	// question about a session, the driver also reads the log for later batches of the
	// session.
	AsksDriver bool      `json:"driven,omitempty"`
	LetGo      *LetGo    `json:"let_go,omitempty"`
	Hand       *HandBack `json:"hand,omitempty"`
	Worker     string    `json:"worker,omitempty"`
}

// LetGo says that a worker gave up a job. The worker does not serve the tool, or is shutting
// down, or an attempt without a claim has failed. After a failed attempt, another one may
// succeed.
type LetGo struct {
	AfterMS int64 `json:"after_ms"`          // pause before the job is published again
	Attempt int   `json:"attempt,omitempty"` // number of attempts of the call that have failed so far
	// Job is the sequence of a job that is still in the queue, or 0. The coordinator removes
	// that job before it publishes a job with the number of failed attempts. So the call never
	// has two jobs in the queue.
	Job uint64 `json:"job,omitempty"`
	// Queue is the token of the queue from which the job came. The call may have a job in
	// another queue by now. Workers of the previous version do not send Queue.
	Queue string `json:"queue,omitempty"`
}

// Stop tells the worker that runs a call to stop the run. It may get lost. The worker cancels
// the run, and the Stop is the cause of the cancelled context.
type Stop struct {
	V      int    `json:"v"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

func (s *Stop) Error() string { return s.Why() }

// Why returns, as the end of a sentence without a full stop, who stopped the call and why.
func (s *Stop) Why() string {
	why := "it was aborted"
	if s.By != "" {
		why += " by " + s.By
	}
	if s.Reason != "" {
		why += ": " + strings.TrimSuffix(s.Reason, ".")
	}
	return why
}

// InputHash returns the hex SHA-256 of an input in the form that jobs have: without white
// space between its parts.
func InputHash(input []byte) string { return messages.Digest(rawjson.AppendRaw(nil, input)) }

// IdempotencyKey returns a key that is the same for every attempt of a call with the same
// arguments: the hex SHA-256 of tenant, session, batch, index, call id, tool and the hash of
// the final arguments, as a JSON array. It ignores a key that the model wrote into the arguments.
func (j Job) IdempotencyKey(argsHash string) string {
	b := make([]byte, 0, 256)
	b = append(b, '[')
	for _, id := range []string{string(j.Tenant), string(j.Session), string(j.Batch)} {
		b = append(rawjson.AppendString(b, id), ',')
	}
	b = append(strconv.AppendInt(b, int64(j.Index), 10), ',')
	for _, text := range []string{string(j.CallID), j.Tool} {
		b = append(rawjson.AppendString(b, text), ',')
	}
	return messages.Digest(append(rawjson.AppendString(b, argsHash), ']'))
}
