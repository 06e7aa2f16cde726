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
// The machine is pure: no clock (every step gets the time), no I/O, no goroutine. Two machines that
// get the same records ask for the same effects, and an event that comes twice asks for nothing new.
// The driver around it carries effects out and reports what the journal then holds.
//
// # States of a call
//
// A row is a state, a column is an event or effect about the call, a cell is the next state. A
// Recorded event has three columns, by the record: a claim (new or renewed), a release or a grant,
// and parked.
//
//	state     claim    release   parked  Running    LetGo      HandedBack  Dispatch
//	waiting   claimed  released  parked  running 1  -          -           queued
//	queued    claimed  released  parked  running 1  released   waiting     -
//	running   claimed  released  parked  -          released 2 waiting     -
//	claimed   claimed  released  parked  -          released 2 waiting     -        3
//	released  claimed  released  parked  running 1  -          waiting     queued
//	parked    claimed  released  parked  -          -          -           never
//
//	-  the state stays
//	1  claimed, when the newest record is a claim that an earlier hint contradicted
//	2  only when this driver has published the job; else the hint is about another driver's job
//	3  for the claim has lapsed: the next worker takes it over
//
// Ending and ended lie over these states. Any of them is ending once an End was asked for, until a
// record or a second driver (Late) has it reconsidered, or the reason for the End goes away. Any of
// them is ended once there is a result: an Ended event, a record or a plan record with a result. An
// adopted plan can take back the result of a call that only our own plan refused.
//
// What a step does about an open call whose turn it is, by its state; the first line that applies
// counts:
//
//	live claim   Stop, when the batch was aborted; else nothing
//	any          End, when the call is no longer wanted or its time is up ([Machine.givenUp])
//	parked       nothing: people answer, or the question expires
//	any          nothing before notBefore
//	waiting      Dispatch, when the window has room
//	released     Dispatch, when the window has room or the call has kept its place in it
//	claimed      the same, once the claim has lapsed or when this driver has published no job
//	running      the same, when this driver has published no job
//	any          Dispatch again after a Look, for jobs get lost; a duplicate does no harm
//
// The remaining events are about the batch: Begin, Planned, Aborted, Steered, Looked and Tick change
// the state of a call only by what the step then does about it.
package batch
