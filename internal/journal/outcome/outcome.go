// Package outcome decides what became of a write to the journal, and whether the writer has
// to try again.
//
// Each write is a compare-and-set: it is stored only if the newest record of the subject is
// the one at sequence last. The acknowledgement can be lost. If the writer then tries again,
// the server reports a conflict, because it has stored the first try. So a conflict alone does
// not show that another writer was first. The newest record of the subject shows it, as soon
// as it can be read.
//
//	answer \ newest record   own          newer than last   not newer    cannot be read
//	Stored                   Won          Won               Won          Won
//	Conflict, Unknown        Won          Overtaken         Undecided    Undecided
//	Impossible               Refused      Refused           Refused      Refused
//
// A writer repeats an undecided write with the same nonce until it is decided. Package journal
// and the simulation both call this package. So the simulation tests the rule that production
// uses.
package outcome

// Answer is the server's answer to a write.
type Answer uint8

// The answers that a write can have.
const (
	// Stored: the write was acknowledged.
	Stored Answer = iota
	// Conflict: the newest record of the subject is not the expected one. It may be this
	// writer's own record: an earlier try was stored and its acknowledgement was lost.
	Conflict
	// Unknown: no acknowledgement came, or no stream accepted the write at that moment.
	Unknown
	// Impossible: every further try would be refused too, for example because of its size.
	Impossible
)

// Final reports whether the answer decides the write without a read of the newest record.
func (a Answer) Final() bool { return a == Stored || a == Impossible }

// Newest is what a read after the write has found.
type Newest struct {
	Read bool   // the read succeeded
	Seq  uint64 // sequence of the record; 0: the subject has none
	Own  bool   // the record has the nonce of the write
}

// Outcome says what became of a write.
type Outcome uint8

// The outcomes of a write.
const (
	// Won: the record is stored, by this try or an earlier one.
	Won Outcome = iota
	// Overtaken: another writer's record is stored, and counts.
	Overtaken
	// Undecided: the record may or may not be stored. The writer tries again.
	Undecided
	// Refused: the record is not stored, and further tries would not store it.
	Refused
)

// Final reports whether the outcome ends the writer's tries.
func (o Outcome) Final() bool { return o != Undecided }

// Of returns the outcome of a write. last is the sequence of the record that the write
// expected as the newest, or 0 if it expected none.
func Of(answer Answer, last uint64, newest Newest) Outcome {
	switch {
	case answer == Stored:
		return Won
	case answer == Impossible:
		return Refused
	case !newest.Read:
		return Undecided
	case newest.Own && newest.Seq > last:
		return Won
	case newest.Seq > last:
		return Overtaken
	}
	return Undecided
}
