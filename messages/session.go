package messages

import "time"

// Get is a get request. The zero value asks for the reply of a batch as it was stored.
type Get struct {
	// Results is "" or [ResultsFull].
	Results  string `json:"results,omitempty"`
	Timeline bool   `json:"timeline,omitempty"` // the answer is a [Timeline]
	// Batches asks for the batches of the session instead: the answer is a [BatchList], and
	// the batch in the subject is ignored. Since and After select the ended batches to list;
	// without both, only open batches are listed.
	Batches bool      `json:"batches,omitempty"`
	Since   time.Time `json:"since,omitzero"` // batches that ended at this time or later
	// After selects the batches that ended after this place. It replaces Since.
	After *uint64 `json:"after,omitempty"`
}

// ResultsFull asks for results with their outputs. For a batch without a reply, the answer has
// the results of the calls that have ended.
const ResultsFull = "full"

// NoBatch is the batch in the subject of a request about its session.
const NoBatch BatchID = "_"

// BatchList lists batches of a session in the order of the log: first those that have ended, as far
// as the request selects them, then those that are open.
type BatchList struct {
	V       int           `json:"v"`
	Batches []ListedBatch `json:"batches"`
	// Place is the value of After for the next request. The next request then lists the
	// batches that did not fit into this answer, and those that ended later. 0: no reply is
	// kept, so repeat the same request. More reports that some batches did not fit; this
	// answer then has no open batches.
	Place uint64 `json:"place"`
	More  bool   `json:"more,omitempty"`
	// Newest is the batch that ended last, while its reply is kept.
	Newest *ListedBatch `json:"newest,omitempty"`
}

// ListedBatch is one batch of a [BatchList].
type ListedBatch struct {
	Batch BatchID `json:"batch"`
	// Status is [BatchRunning] while there is no reply, and then the status of the reply.
	Status   string    `json:"status"`
	Accepted time.Time `json:"accepted,omitzero"` // of an open batch
	Ended    time.Time `json:"ended,omitzero"`    // when its reply was stored
	// Place is the sequence of the batch's reply among all replies; 0: the batch is open.
	Place uint64 `json:"place,omitempty"`
}

// Open reports whether the batch has no reply yet.
func (b ListedBatch) Open() bool { return b.Place == 0 }
