package lane

// Count is something that happens to calls and is counted.
type Count int

// The counted events.
const (
	Taken       Count = iota // a job is taken in hand
	Left                     // a job is out of hand again
	Redelivered              // the job of a delivery was delivered before
	Claimed                  // a claim is stored
	// Another worker has the call, or it has ended; at most once per attempt.
	ClaimRefused
	LeaseLost  // a claim could not be renewed in time
	Progressed // a tool reported progress
)

func (a *attempt) count(what Count) { a.cfg.Count(what, a.pool) }

// claimRefused counts a refused claim once, even when it is noticed twice.
func (a *attempt) claimRefused() {
	if !a.refused {
		a.refused = true
		a.count(ClaimRefused)
	}
}

// loseLease ends a run that can no longer prove its claim.
func (a *attempt) loseLease(why error) {
	a.leaseLost.Do(func() { a.count(LeaseLost) })
	a.cancel(why)
}
