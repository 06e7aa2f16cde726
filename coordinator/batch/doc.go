// Package batch drives one batch as a state machine: events in, effects out.
//
//	Begin, Late, Recorded, Ended, Planned, HandedBack, LetGo, Running, Aborted, Steered, Looked, Tick
//	                               |
//	                          Machine.Step
//	                               |
//	Announce, Dispatch, StorePlan, Look, End, Stop, Tell, Finish   (carried out in this order)
//
// Each step derives anew what may start. The first stage with an open call runs; calls of it that
// workers handed back run last, each alone. So recovery has no path of its own: a coordinator that
// takes a batch over gives the records of the journal to a new machine, then Begin, and goes on.
//
// The machine is pure: no clock (every step gets the time), no I/O, no goroutine. Two machines
// that get the same records ask for the same effects, and an event that comes twice asks for
// nothing new. The driver around it carries effects out and reports what the journal then holds.
//
// # States of a call
//
// A row is a state, a column is an event or effect about the call, a cell is the next state.
// Recorded has three columns: the record is a claim (new or renewed), a release or a grant, or
// parked.
//
//	state     claim    release   parked  Running   LetGo      HandedBack  Dispatch
//	waiting   claimed  released  parked  running*  -          -           queued
//	queued    claimed  released  parked  running*  released   waiting     -
//	running   claimed  released  parked  -         released+  waiting     -
//	claimed   claimed  released  parked  -         released+  waiting     -
//	released  claimed  released  parked  running*  -          waiting     queued
//	parked    claimed  released  parked  -         -          -           never
//
//	-  the state stays; so it does when HandedBack comes again
//	*  claimed, when the newest record is a claim: an earlier hint contradicted it
//	+  only when this driver has published the job; else the hint is about another driver's job
//
// Ending and ended lie over these states. A call is ending from its End on, until a record or a
// second driver (Late) has the End reconsidered, or the reason for it goes away. It is ended once
// it has a result: by an Ended event, or in its journal or a plan record. An adopted plan can
// take back a result by which only our own plan refused the call.
//
// What a step does about an open call whose turn it is, by its state; the first line that applies
// counts:
//
//	live claim   Stop, when the batch was aborted; else nothing
//	any          End, when the call is no longer wanted or its time is up: see givenUp
//	parked       nothing: people answer, or the question expires
//	any          nothing before notBefore
//	waiting      Dispatch, when the window has room
//	released     Dispatch, when the window has room or the call has kept its place in it
//	claimed      the same, once the claim has lapsed or when this driver has published no job
//	running      the same, when this driver has published no job
//	any          Dispatch again after a Look, for jobs get lost; a duplicate does no harm
//
// The remaining events are about the batch: Begin, Planned, Aborted, Steered, Looked and Tick
// change the state of a call only by what the step then does about it.
package batch
