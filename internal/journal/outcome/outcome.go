// Package outcome decides whether a write to the journal has happened, and whether the writer tries
// again.
//
// Each write is a compare-and-set: it is stored if the newest record is the one at sequence last.
// Its acknowledgement can be lost. If the writer then tries again, the server answers with a
// conflict although it has stored the first try. So a conflict proves nothing by itself: the newest
// record of the subject decides, once it can be read.
//
//	answer \ newest record   own          newer than last   not newer    cannot be read
//	Stored                   Won          Won               Won          Won
//	Conflict, Unknown        Won          Overtaken         Undecided    Undecided
//	Impossible               Refused      Refused           Refused      Refused
//
// A writer repeats an undecided write, with the same nonce, until it is decided. Package journal
// and the simulation both call this package, so the simulation tests the rule that production uses.
package outcome

// Answer is the server's answer to a write.
type Answer uint8

// The answers.
const (
	// Stored: the write was acknowledged.
	Stored Answer = iota
	// Conflict: the newest record of the subject is not the expected one. It may be this writer's
	// own, from an earlier try whose acknowledgement was lost.
	Conflict
	// Unknown: no acknowledgement came, or no stream could take the write at this moment.
	Unknown
	// Impossible: every further try would be refused too, for example as too large.
	Impossible
)

// Final reports whether the answer decides the write without reading the newest record.
func (a Answer) Final() bool { return a == Stored || a == Impossible }

// Newest says what a read of the newest record found after the write.
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
	// Overtaken: another writer's record is stored in its place, and that one counts.
	Overtaken
	// Undecided: it is not known whether the record is stored. The writer tries again.
	Undecided
	// Refused: the record is not stored and never will be.
	Refused
)

// Final reports whether the outcome ends the writer's tries.
func (o Outcome) Final() bool { return o != Undecided }

// Of returns the outcome of a write after the record at sequence last (0: as the first of its
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
