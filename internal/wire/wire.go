// Package wire has the messages inside the fleet (records of the journal, jobs, and notices
// between coordinators and workers) and the subjects of all messages.
//
//	Job          coordinator -> worker   one call on its way to be run
//	Notice       worker -> coordinator   what happened to a job; a hint, never the truth
//	CallRecord   journal                 what is durable about a call
//	PlanRecord   journal                 what is durable about the plan of a batch
//	Presence     worker -> all           what a worker serves
//	DeadLetter   all -> operators        a message that could not be processed
//
// Messages that agents read or write are in package messages. This package has values only.
package wire
