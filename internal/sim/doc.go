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
// of the workers may change meanwhile.
//
// Nothing happens by itself. A seed chooses which party goes next, what is lost and which process
// dies, so every history can be run again; thousands of them take seconds. The broker answers as
// the real server does: the tests run the same random commands on both and compare every answer.
//
// The decisions are those of the real code: batch.Machine, attempt.Machine, session, recall, plan,
// approval, and internal/journal, which runs on the model of the broker (see [store]). The files
// here carry the decisions out: worker.go for a worker, coordinator.go, close.go and rest.go for a
// coordinator. phases.go is package pipeline in short. Package world has the clock, the processes
// and what goes wrong; package broker is the model of the server.
//
// The ledger stands outside. It sees what really ran, and stops a history at the first broken rule:
//
//	go test ./internal/sim -sim.seeds=100000     more histories
//	go test ./internal/sim -sim.seed=63 -v       one of them, written down
//
// The package leaves to others how tools run, what the messages look like, and everything that
// needs real processes; see internal/e2e.
package sim
