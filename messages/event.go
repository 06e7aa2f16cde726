package messages

import "time"

// EventHeader tells the events of a batch from its reply, and its value is the event's type.
const EventHeader = "Toolfleet-Event"

// ProgressHeader on a request at the run door asks for the events before the reply.
const ProgressHeader = "Toolfleet-Progress"

// ChunkHeader numbers the parts of an answer that is too large for one message: "2/3". Put together in
// order they are the answer.
const ChunkHeader = "Toolfleet-Chunk"

// EventType is what an [Event] tells of.
type EventType string

// The events of a batch in the order of their first appearance. Start events of all calls come before
// anything runs; running, progress and end are live; results come in call order, then the reply.
const (
	EventStart    EventType = "start"
	EventRunning  EventType = "running"
	EventProgress EventType = "progress"
	EventEnd      EventType = "end"
	EventResult   EventType = "result"
	EventReply    EventType = "reply"
	// EventAwaiting says that the call waits for a person. EventHook tells of a hook.
	EventAwaiting EventType = "awaiting_approval"
	EventHook     EventType = "hook"
	// EventWaiting says, at the run door only, that the batch is still open: nothing for people. The Go client tells it when
	// nobody answers at that door any more.
	EventWaiting EventType = "waiting"
)

// Event is news about a batch, over core NATS: it may be lost and decides nothing.
type Event struct {
	V       int       `json:"v"`
	Type    EventType `json:"type"`
	Session SessionID `json:"session"`
	Batch   BatchID   `json:"batch"`
	Index   int       `json:"index"` // of the call; -1 in a reply event
	CallID  CallID    `json:"call_id,omitempty"`
	Tool    string    `json:"tool,omitempty"`
	Kind    Kind      `json:"kind,omitempty"`
	Attempt int       `json:"attempt"`
	// Counter grows with every event about one call from one process.
	Counter  int       `json:"counter"`
	Time     time.Time `json:"time"`
	Worker   string    `json:"worker,omitempty"`
	Progress *Progress `json:"progress,omitempty"`
	// Result leaves out the output. In end and result events.
	Result *Result     `json:"result,omitempty"`
	Status ReplyStatus `json:"status,omitempty"` // in a reply event
	Stage  int         `json:"stage"`            // in a start event: the stage the call belongs to, from 0
	// Approval is the question that people are asked, in an awaiting_approval event; Hook, in a hook event, is its news.
	Approval *Pending     `json:"approval,omitempty"`
	Hook     *HookMessage `json:"hook,omitempty"`
}

// Progress is how far a running tool is, in its own words.
type Progress struct {
	Fraction float64 `json:"fraction,omitempty"` // 0 to 1; 0: not known
	Text     string  `json:"text,omitempty"`
}

// Timeline is what is durable about a batch, as the events that told of it: what a watcher that was away has missed. The
// type, the index and the attempt of an event tell which is which: one that was seen already is told again.
type Timeline struct {
	V       int       `json:"v"`
	Session SessionID `json:"session"`
	Batch   BatchID   `json:"batch"`
	// Status is running until there is a reply, then the reply's.
	Status string `json:"status"`
	// Accepted is when the batch was stored; zero where that is not known any more.
	Accepted time.Time `json:"accepted,omitzero"`
	TraceID  string    `json:"trace_id,omitempty"`
	Events   []Event   `json:"events"`
}
