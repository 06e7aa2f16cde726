package messages

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// EventHeader marks the events of a batch and names their type. A reply does not have it.
const EventHeader = "Toolfleet-Event"

// ProgressHeader on a run request asks for the events before the reply.
const ProgressHeader = "Toolfleet-Progress"

// ChunkHeader numbers the parts of an answer that is too large for one message: "2/3". The parts
// joined in order are the answer.
const ChunkHeader = "Toolfleet-Chunk"

// EventType is what an [Event] is about.
type EventType string

// The events of a batch in the order of their first appearance. The start events of all calls come
// before anything runs. Running, progress and end events come when they happen. Result events come
// once all calls have ended, in call order, then the reply.
const (
	// EventStart says that the call is part of the batch, and which stage it belongs to.
	EventStart EventType = "start"
	// EventRunning says that an attempt of the call has begun.
	EventRunning EventType = "running"
	// EventProgress is a report of the running tool.
	EventProgress EventType = "progress"
	// EventEnd says that the call has just ended. It has the output if that is small; see
	// [Result.Brief].
	EventEnd EventType = "end"
	// EventResult has the same result as the end event of the call, without its output. It comes in
	// call order, once all calls have ended.
	EventResult EventType = "result"
	// EventReply says that the reply is stored. It is the last event of a batch.
	EventReply EventType = "reply"
	// EventAwaiting says that the call waits for a person.
	EventAwaiting EventType = "awaiting_approval"
	// EventHook is about a hook of the call.
	EventHook EventType = "hook"
	// EventWaiting says that the batch is still open. It is sent at intervals, and only to a run
	// request that asked for progress; it is not meant for people. The Go client also emits it when
	// coordinators stop answering its run request.
	EventWaiting EventType = "waiting"
	// EventGap says that events may have been missed before it. Only readers of live events make
	// it: the Go client, and the HTTP API.
	EventGap EventType = "gap"
)

// Event is news about a batch, over core NATS. It may be lost, so no code may rely on it.
type Event struct {
	V       int       `json:"v"`
	Type    EventType `json:"type"`
	Session SessionID `json:"session"`
	Batch   BatchID   `json:"batch"`
	Index   int       `json:"index"` // of the call; -1 in a reply event
	CallID  CallID    `json:"call_id,omitempty"`
	Tool    string    `json:"tool,omitempty"`
	Kind    Kind      `json:"kind,omitempty"`
	Attempt int       `json:"attempt"` // from 1; 0: the call has not run
	// Counter grows with every event about one call from one process.
	Counter int       `json:"counter"`
	Time    time.Time `json:"time"`             // the sender's wall clock
	Worker  string    `json:"worker,omitempty"` // the worker that runs the call
	// Progress is set in a progress event. In the waiting events that `toolfleet run --events`
	// prints, it says why the batch waits.
	Progress *Progress `json:"progress,omitempty"`
	// Result is set in end and result events. In an end event it is brief, in a result event it
	// leaves out the output.
	Result *Result     `json:"result,omitempty"`
	Status ReplyStatus `json:"status,omitempty"` // in a reply event
	// Stage, in a start event, is the stage that the call belongs to, from 0.
	Stage int `json:"stage"`
	// Principal and Labels are set in start events. Principal says who asked for the batch;
	// nil: the user is not known. Labels are those of the batch.
	Principal *Principal        `json:"principal,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Approval is the question in an awaiting_approval event. Hook is the message of a hook event.
	Approval *Pending     `json:"approval,omitempty"`
	Hook     *HookMessage `json:"hook,omitempty"`
}

// MaxEventOutput is the largest output of an end event, in bytes of JSON. An event has only
// the Ref of a larger output, because most events have no reader.
const MaxEventOutput = 4 << 10

// Brief returns the result as an end event has it. An output larger than [MaxEventOutput] is left
// out; Ref then has the digest and the size of the outcome. A get request with [ResultsFull]
// returns the whole at any time.
func (r Result) Brief() Result {
	if len(r.Output)+len(r.Details) <= MaxEventOutput && len(r.Content) == 0 {
		return r
	}
	body, err := rawjson.Marshal(r.Outcome)
	if err == nil && len(body) <= MaxEventOutput {
		return r
	}
	r.Output, r.Content, r.Details = nil, nil, nil
	if err == nil && r.Ref == nil {
		r.Ref = &Ref{Digest: Digest(body), Size: int64(len(body))}
	}
	return r
}

// Progress says how far a running tool is.
type Progress struct {
	Fraction float64 `json:"fraction,omitempty"` // 0 to 1; 0: not known
	Text     string  `json:"text,omitempty"`     // a few words
}

// Timeline is the durable part of a batch's history, as events. A watcher reads it to catch up. Two
// events are the same if their type, index and attempt are the same, so the watcher can leave out
// those that it has seen.
type Timeline struct {
	V       int       `json:"v"`
	Session SessionID `json:"session"`
	Batch   BatchID   `json:"batch"`
	// Status is [BatchRunning] while there is no reply, and then the status of the reply.
	Status string `json:"status"`
	// Accepted is when the batch was stored; zero when that is no longer known.
	Accepted time.Time `json:"accepted,omitzero"`
	TraceID  string    `json:"trace_id,omitempty"`
	Events   []Event   `json:"events"`
}
