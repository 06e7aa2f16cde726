// Package sim runs a whole fleet in one goroutine, on a clock that it moves itself. Agents,
// coordinators and workers execute one command at a time, on a model of the broker.
//
//	agents    coordinators (batch.Machine)    workers (attempt.Machine)
//	       \          |                      /
//	         Link: loses, delays, repeats            one per party
//	                  |
//	         Broker: streams, queues, core messages
//
// Some calls ask people. A person gives any answer at any time, to any coordinator. The policy of
// the workers and the version of their tools may change meanwhile. Workers may have only some of
// the tools, may be of the previous version, or may be away for a while.
//
// A seed decides everything: which party goes next, what is lost, and which process dies. So every
// history can be run again, and thousands of them take seconds. The broker answers as the real
// server does: tests run the same random commands on both and compare every answer.
//
// The real code decides: batch.Machine, attempt.Machine, session, recall, plan, toolset, placement,
// approval, and internal/journal. The files here carry the decisions out: worker.go for a worker;
// coordinator.go, drive.go, line.go, close.go and rest.go for a coordinator; toolsets.go for what
// each knows about the other. phases.go is a short form of package pipeline.
//
//	world   the clock, the processes, and what goes wrong
//	broker  the model of the server
//	store   the journal on that model
//	staff   what workers serve
//	judge   the outside view; it stops a history at the first broken rule
//
//	go test ./internal/sim -sim.seeds=100000     more histories
//	go test ./internal/sim -sim.seed=63 -v       one of them, written down
//
// The package does not cover how tools run, the form of messages, and everything that needs real
// processes; see internal/e2e.
package sim
