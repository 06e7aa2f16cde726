// Package soak injects faults into a fleet of real processes, and checks the results.
//
//	agents --batches--> server, coordinators, workers --tools--> ledger
//	   |                     ^                                     |
//	   |                  faults: kill -9, SIGSTOP, SIGTERM        |
//	   +--replies------> history --> Check <------lines------------+
//
// [Check] compares the replies of the fleet with the ledger, a file that only the tools write,
// and with the faults. It is a pure function, and its tests give it forged histories to show
// that it can fail. The rules are the guarantees 1 to 4 of the README: every acknowledged
// batch has one reply, with one result for each call; the results agree with the ledger; the
// writes of a session happen in order; and every unknown outcome has a fault as its cause.
//
// A seed fixes the faults and the batches, but not the scheduling of the operating system: the
// same seed hits the same processes in the same order, and mostly finds the same violations.
package soak
