package coordinator

// sight is what a coordinator sees of a batch that was delivered to it. The looks are taken one by one, and each may
// be old by the time it is judged.
type sight struct {
	seq     uint64 // of the batch in the log
	head    uint64 // of the oldest batch in its session's log; 0: there is none
	replied bool   // its reply is stored
	driven  bool   // it is driven here
	// elsewhere: another coordinator said lately that it drives it.
	elsewhere bool
}

// verdict is what a delivery is good for.
type verdict int

const (
	// lead: the batch is the head of its session. Drive it, and then the heads behind it.
	lead verdict = iota
	// join: it is driven here. The delivery becomes that drive's sign of life.
	join
	// answer: it was brought to its end before. Publish the stored reply and take it out of the log.
	answer
	// wait: another batch of the session comes first, and whoever finishes that one drives this one; or somebody does
	// already.
	wait
	// vanished: it has left the log a moment ago.
	vanished
)

// turn is the lane rule. A batch is driven only when it is the oldest of its session, which nobody has to agree on:
// the log says so. That stays true once it was seen, because a batch leaves the log only after its end, so a sight may
// be old: at worst it has a batch driven that has ended meanwhile, which finds its own records.
func turn(s sight) verdict {
	switch {
	case s.driven:
		return join
	case s.replied:
		return answer
	case s.head == 0:
		return vanished
	case s.head != s.seq, s.elsewhere:
		return wait
	}
	return lead
}
