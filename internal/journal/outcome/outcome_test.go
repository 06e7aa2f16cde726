package outcome

import "testing"

// TestOfAgreesWithItsTable checks Of against every row and column of the table in the package
// comment.
func TestOfAgreesWithItsTable(t *testing.T) {
	const last = 7
	columns := []Newest{
		{Read: true, Seq: 9, Own: true}, {Read: true, Seq: 9}, {Read: true, Seq: last}, {},
	}
	for answer, row := range map[Answer][4]Outcome{
		Stored:     {Won, Won, Won, Won},
		Conflict:   {Won, Overtaken, Undecided, Undecided},
		Unknown:    {Won, Overtaken, Undecided, Undecided},
		Impossible: {Refused, Refused, Refused, Refused},
	} {
		for i, want := range row {
			if got := Of(answer, last, columns[i]); got != want {
				t.Errorf("answer %d, newest %+v: outcome %d, want %d", answer, columns[i], got, want)
			}
		}
	}
}

// A conflict alone never ends a write, because the record in conflict may be the writer's own.
func TestAConflictNeverEndsAWriteByItself(t *testing.T) {
	for last := range uint64(3) {
		if got := Of(Conflict, last, Newest{}); got.Final() {
			t.Errorf("a conflict after %d whose newest record cannot be read is final: %d", last, got)
		}
	}
}

// A server that is behind returns a record that is older than the expected one: the write
// stays undecided.
func TestARecordThatWentBackDecidesNothing(t *testing.T) {
	for _, seq := range []uint64{0, 3, 7} {
		if got := Of(Conflict, 7, Newest{Read: true, Seq: seq}); got != Undecided {
			t.Errorf("newest %d, expected 7: outcome %d, want undecided", seq, got)
		}
	}
}
