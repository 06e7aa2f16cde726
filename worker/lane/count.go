package lane

// Count is something that happens to calls and is worth being counted.
type Count int

// What is counted.
const (
	Taken        Count = iota // a job is taken in hand
	Left                      // and is out of hand again
	Redelivered               // a job was delivered before
	Claimed                   // a claim is stored
	ClaimRefused              // a call is claimed by another, or was when ours was to be stored
	LeaseLost                 // a claim could not be renewed in time
	Progressed                // a tool told how far it is
)

func (a *attempt) count(what Count) { a.cfg.Count(what, a.pool) }

// claimRefused counts that the call is another's: once, though it may be noticed twice.
func (a *attempt) claimRefused() {
	if !a.refused {
		a.refused = true
		a.count(ClaimRefused)
	}
}

// loseLease ends the run, which can no longer prove its claim.
func (a *attempt) loseLease(why error) {
	a.leaseLost.Do(func() { a.count(LeaseLost) })
	a.cancel(why)
}
