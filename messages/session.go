package messages

import "time"

// Get is a request at the get door. Empty it asks for the reply of a batch as it was stored.
type Get struct {
	Results  string `json:"results,omitempty"`  // full: the results repeat their outputs
	Timeline bool   `json:"timeline,omitempty"` // the answer is a [Timeline]
	// Batches asks about the session instead, whichever batch is named: the answer is a [BatchList]. Since and After say which
	// of those that have ended are on it; without either none.
	Batches bool      `json:"batches,omitempty"`
	Since   time.Time `json:"since,omitzero"`  // those that ended then and later
	After   *uint64   `json:"after,omitempty"` // those that ended after this place, in place of Since
}

// NoBatch is the batch in the subject of a request about its session.
const NoBatch BatchID = "_"

// BatchList is batches of a session in the order of the log: those that have ended, as far as they are asked for, and then
// those that are open.
type BatchList struct {
	V       int           `json:"v"`
	Batches []ListedBatch `json:"batches"`
	// Place is what to ask for next: the batches that end after this answer are after it, and so are those that found no room
	// in it, of which More tells. An answer with More to come ends before the open ones. 0: ask as before.
	Place uint64 `json:"place"`
	More  bool   `json:"more,omitempty"`
	// Newest is the batch that ended last, as far as its reply is kept.
	Newest *ListedBatch `json:"newest,omitempty"`
}

// ListedBatch is one of them.
type ListedBatch struct {
	Batch BatchID `json:"batch"`
	// Status is running until there is a reply, then the reply's.
	Status   string    `json:"status"`
	Accepted time.Time `json:"accepted,omitzero"` // of one that is open
	Ended    time.Time `json:"ended,omitzero"`    // when its reply was stored
	Place    uint64    `json:"place,omitempty"`   // of its reply among all replies
}

// Open reports whether the batch has no reply yet.
func (b ListedBatch) Open() bool { return b.Place == 0 }
