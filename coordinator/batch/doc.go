// Package batch drives one batch as a state machine: events in, effects out.
//
//	Begin, Late, Recorded, Ended, Planned, HandedBack, LetGo, Running, Unserved, Aborted, Steered,
//	Turn, Looked, Tick
//	                               |
//	                          Machine.Step
//	                               |
//	Announce, Dispatch, StorePlan, Look, End, Stop, Tell, Finish   (carried out in this order)
//
// Each step works out from the states of the calls what may start. The current stage is the
// first one with an open call. Calls that workers have handed back run at the end of their
// stage, each alone. Recovery has no code of its own: a coordinator that takes a batch over
// gives the records of the journal to a new machine, and then Begin.
//
// The machine is pure: it has no clock (every step gets the time), no I/O and no goroutine.
// Two machines with the same records ask for the same effects. An event that comes twice has
// no effect the second time. After an effect, the driver reports what the journal then has.
//
// # States of a call
//
// A row is a state of a call. A column is an event or effect about the call. A cell is the
// next state. The first three columns are Recorded events with this record: a claim (new or
// renewed), a release or a grant, or a question to people (parked).
//
//	state     claim    release   parked  Running   LetGo      HandedBack  Dispatch
//	waiting   claimed  released  parked  running*  -          -           queued
//	queued    claimed  released  parked  running*  released   waiting     -
//	running   claimed  released  parked  -         released+  waiting     -
//	claimed   claimed  released  parked  -         released+  waiting     -
//	released  claimed  released  parked  running*  -          waiting     queued
//	parked    claimed  released  parked  -         -          -           never
//
//	-  the state stays. A second HandedBack changes nothing. If the stored plan fixes a call,
//	   the call becomes waiting too. It is then published again and does not run alone
//	*  claimed, if the newest record is a claim, which an earlier hint had contradicted
//	+  only if this driver has published the job: otherwise the hint is about another driver's
//	   job
//
// A call in one of these states can also be ending or ended, and then counts as ending or
// ended. It is ending from the time when the machine asks for its End. It stops being ending
// if the reason for the End is gone, or if a new record or a second driver (Late) makes the
// machine decide again. A call is ended once it has a result: from an Ended event, from its
// journal, or from a plan record. If only this machine's plan refused a call, the result of
// the refusal can be dropped: when the stored plan of another coordinator does not refuse the
// call, or when the journal has an end of the call.
//
// The next table shows what a step does about an open call of the current stage. The first
// line that applies counts:
//
//	live claim   Stop, if the batch was aborted; else nothing
//	any          End, if the call is no longer wanted or its time is up: see givenUp
//	parked       nothing: people answer, or the question expires
//	any          nothing before notBefore
//	any          nothing, if no job of the call is out and the batch's Turn forbids its start
//	waiting      Dispatch, if the window has room
//	released     Dispatch, if the window has room or the call has kept its place in it
//	claimed      as in released, if the claim has lapsed or this driver has published no job
//	running      as in released, if this driver has published no job
//	any          Dispatch again after a Look, because jobs get lost; a duplicate does no harm
//
// Unserved changes no state: it limits how long a call waits in queued and released. The
// other events are about the batch. Begin, Planned, Aborted, Steered, Turn, Looked and Tick
// change no call's state themselves, but the step that follows may.
package batch
