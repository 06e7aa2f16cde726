// Package outcome decides what became of a write to the journal, and whether the writer tries
// again.
//
// Each write is a compare-and-set behind the record at sequence last. Its acknowledgement can be
// lost, and the server answers the second try of a write that it has stored with a conflict. So a
// conflict proves nothing by itself: the newest record of the subject decides, once it can be read.
//
//	answer \ newest record   own          newer than last   not newer    cannot be read
//	Stored                   Won          Won               Won          Won
//	Conflict, Unknown        Won          Overtaken         Undecided    Undecided
//	Impossible               Refused      Refused           Refused      Refused
//
// A writer repeats an undecided write, with the same nonce, until it is decided. Package journal
// and the simulation both call this package, so the seeds try the rule that runs.
package outcome

// Answer is the server's answer to a write.
type Answer uint8

// The answers.
const (
	// Stored: the write was acknowledged.
	Stored Answer = iota
	// Conflict: the newest record of the subject is not the expected one. It may be the writer's
	// own, from an earlier try whose acknowledgement was lost.
	Conflict
	// Unknown: no acknowledgement came, or nothing took the write at this moment.
	Unknown
	// Impossible: every further try would be refused the same way, for example as too large.
	Impossible
)

// Final reports whether the answer decides the write without reading the newest record.
func (a Answer) Final() bool { return a == Stored || a == Impossible }

// Newest is what a read of the newest record found after the write.
type Newest struct {
	Read bool   // the read was answered
	Seq  uint64 // of the record; 0: the subject has none
	Own  bool   // the record has the nonce of the write
}

// Outcome is what a write came to.
type Outcome uint8

// The outcomes.
const (
	// Won: the record is stored, by this try or an earlier one.
	Won Outcome = iota
	// Overtaken: another writer's record is stored in its place, and counts.
	Overtaken
	// Undecided: it is not known whether the record is stored. The writer tries again.
	Undecided
	// Refused: the record is not stored and never will be.
	Refused
)

// Final reports whether the outcome ends the writer's tries.
func (o Outcome) Final() bool { return o != Undecided }

// Of returns the outcome of a write behind the record at sequence last (0: as the first of its
// subject).
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
