// Package sim runs a whole fleet in one goroutine, on a clock that it moves itself. Agents,
// coordinators and workers execute one command at a time, on a model of the broker.
//
//	agents    coordinators (batch.Machine)    workers (attempt.Machine)
//	       \          |                      /
//	         Link: loses, delays, repeats            one per party
//	                  |
//	         Broker: streams, queues, core messages
//
// Some calls need an answer of people. A person may give any answer, at any time, to any
// coordinator. Meanwhile the policy of the workers and the version of their tools may change.
// A worker may have only some of the tools, may be of the previous version, or may be away for
// a while.
//
// A seed decides everything: which process acts next, which message is lost, and which process
// dies. So every history can be repeated. Thousands of histories take seconds. The broker
// answers as the real server does: tests run the same random commands on both and compare
// every answer.
//
// The real code makes all decisions: batch.Machine, attempt.Machine, session, recall, plan,
// toolset, placement, approval, and internal/journal. The files of this package carry the
// decisions out: worker.go for a worker; coordinator.go, drive.go, line.go, close.go and
// rest.go for a coordinator; toolsets.go for the announcements of workers. phases.go is a
// short form of package pipeline.
//
//	world   the clock, the processes, and what goes wrong
//	broker  the model of the server
//	store   the journal on that model
//	staff   what workers serve
//	judge   the rules, checked from outside; it stops a history at the first broken rule
//
//	go test ./internal/sim -sim.seeds=100000     more histories
//	go test ./internal/sim -sim.seed=63 -v       one history, printed step by step
//
// The simulation does not cover how tools run, the encoding of messages, and what needs real
// processes: see internal/e2e.
package sim
