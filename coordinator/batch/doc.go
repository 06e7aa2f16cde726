// Package batch drives one batch as a state machine: events in, effects out.
//
//	Begin, Late, Recorded, Ended, Planned, HandedBack, LetGo, Running, Unserved, Aborted, Steered,
//	Turn, Looked, Tick
//	                               |
//	                          Machine.Step
//	                               |
//	Announce, Dispatch, StorePlan, Look, End, Stop, Tell, Finish   (carried out in this order)
//
// Each step works out from the states of the calls what may start. The first stage with an open
// call runs. Calls that workers handed back run at the end of their stage, each alone. Recovery
// needs no code of its own: a coordinator that takes a batch over gives the records of the journal
// to a new machine, then Begin, and goes on.
//
// The machine is pure: no clock (every step gets the time), no I/O, no goroutine. Two machines that
// get the same records ask for the same effects, and an event that comes twice asks for nothing
// new. The driver carries the effects out, and reports to the machine what the journal then holds.
//
// # States of a call
//
// A row is a state, a column is an event or effect about the call, a cell is the next state. The
// first three columns are Recorded: the record is a claim (new or renewed), a release or a grant,
// or parked.
//
//	state     claim    release   parked  Running   LetGo      HandedBack  Dispatch
//	waiting   claimed  released  parked  running*  -          -           queued
//	queued    claimed  released  parked  running*  released   waiting     -
//	running   claimed  released  parked  -         released+  waiting     -
//	claimed   claimed  released  parked  -         released+  waiting     -
//	released  claimed  released  parked  running*  -          waiting     queued
//	parked    claimed  released  parked  -         -          -           never
//
//	-  the state stays; a second HandedBack changes nothing either. A call that is fixed by the
//	   stored plan is published again as before
//	*  claimed, if the newest record is a claim: an earlier hint had contradicted it
//	+  only if this driver has published the job; otherwise the hint is about another driver's job
//
// A call in any of these states can also be ending or ended, and then counts as that. It is ending
// once the machine asks for its End, until a record or a second driver (Late) makes the machine
// reconsider the End, or the reason for it goes away. It is ended once it has a result: from an
// Ended event, from its journal or from a plan record. A result by which only this machine's plan
// refused the call is taken back if another coordinator's plan does not refuse it.
//
// What a step does about an open call of the current stage, by its state; the first line that
// applies counts:
//
//	live claim   Stop, if the batch was aborted; else nothing
//	any          End, if the call is no longer wanted or its time is up: see givenUp
//	parked       nothing: people answer, or the question expires
//	any          nothing before notBefore
//	any          nothing, if no job of it is out and its Turn does not let it start
//	waiting      Dispatch, if the window has room
//	released     Dispatch, if the window has room or the call has kept its place in it
//	claimed      the same, once the claim has lapsed or if this driver has published no job
//	running      the same, if this driver has published no job
//	any          Dispatch again after a Look, because jobs get lost; a duplicate does no harm
//
// Unserved changes no state: it bounds how long a call waits in queued and released. The remaining
// events are about the batch: Begin, Planned, Aborted, Steered, Turn, Looked and
// Tick change no call's state by themselves; the step after them may.
package batch
