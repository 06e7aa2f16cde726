// Package sim runs a whole fleet in one goroutine, on a clock that it moves itself: agents,
// coordinators and workers that do one command at a time, on a model of the broker.
//
//	agents    coordinators (batch.Machine)    workers (attempt.Machine)
//	       \          |                      /
//	         Link: loses, delays, repeats            one per party
//	                  |
//	         Broker: streams, queues, core messages
//
// Some calls ask people. A person answers when and what they like, to any coordinator. The policy
// of the workers and the version of their tools may change meanwhile. Workers may have parts of the
// tools, be of the version before, or be away for a while.
//
// Nothing happens by itself. A seed chooses which party goes next, what is lost and which process
// dies, so every history can be run again; thousands of them take seconds. The broker answers as
// the real server does: the tests run the same random commands on both and compare every answer.
//
// The decisions are those of the real code: batch.Machine, attempt.Machine, session, recall, plan,
// toolset, placement, approval, and internal/journal. The files here carry the decisions out:
// worker.go for a worker; coordinator.go, drive.go, line.go, close.go and rest.go for a
// coordinator; toolsets.go for what each knows of the other. phases.go is package pipeline in
// short.
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
// The package leaves to others how tools run, what the messages look like, and everything that
// needs real processes; see internal/e2e.
package sim
