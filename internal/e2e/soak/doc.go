// Package soak breaks a fleet of real processes for as long as it is told to, and judges what came of it.
//
//	agents --batches--> server, coordinators, workers --tools--> ledger
//	   |                     ^                                     |
//	   |                  faults: kill -9, SIGSTOP, SIGTERM        |
//	   +--replies------> history --> Check <------lines------------+
//
// What the fleet says (replies) is held against what was done (the ledger, a file that only the tools
// write) and against what was done to the fleet (the faults). [Check] is a pure function of the three, so
// that a forged history shows that it can fail. The rules are the guarantees 1 to 4 of the README: every
// acknowledged batch has one reply, with one result for each call; what the results say is true of the
// ledger; the writes of a session happen in order; and every outcome that is unknown has a fault behind it.
//
// A seed fixes the faults and the batches. It does not fix what the operating system does with them: the
// same seed breaks the same processes in the same order, and mostly finds the same things.
package soak
