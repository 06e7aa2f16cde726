// Package sim runs a whole fleet in one goroutine, on a clock that it moves itself: agents, coordinators and
// workers as machines that do one command at a time, on a model of the broker.
//
//	agents    coordinators (batch.Machine)    workers
//	       \          |                      /
//	         Link: loses, delays, repeats            one per party
//	                  |
//	         Broker: streams, queues, core messages
//
// Some calls ask people, who answer when and what they like, to whichever coordinator; the policy of the workers may change
// meanwhile.
//
// Nothing in it happens by itself. Which party goes next, what gets lost and who dies is chosen from a seed,
// so every history can be run again; thousands of them take seconds. The broker answers as the real server
// does: the tests run the same random commands on both and compare every answer.
//
// The journal is the real internal/journal: [store] puts the model of the broker under it, and the bytes that it
// writes are the bytes that it reads. batch.Machine, plan, approval, session.Decide and lane.Decide are real too.
// The shells around them do I/O in the daemons, so they are written here once more: coordinator.go, close.go and
// rest.go follow package coordinator, worker.go package lane, asking.go what package pipeline does about people.
//
// The ledger stands outside. It sees what really ran, and stops a history at the first broken rule:
//
//	go test ./internal/sim -sim.seeds=100000     more histories
//	go test ./internal/sim -sim.seed=63 -v       one of them, written down
//
// What it leaves to others: how tools run, what the messages look like on the wire, and everything that
// needs real processes; see internal/e2e.
package sim
