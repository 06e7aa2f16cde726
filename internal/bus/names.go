package bus

// The streams and buckets of a fleet, by the names that wire.Names.Stream takes.
const (
	Batches = "BATCHES" // the log: accepted batches that are not finished
	Jobs    = "JOBS"    // pointers to calls that should run
	Calls   = "CALLS"   // records of calls that claim; plans, hand-backs, controls
	Results = "RESULTS" // results of calls that do not claim
	Audit   = "AUDIT"   // the audit log
	Dead    = "DEAD"    // dead letters, each with its reason
	Replies = "REPLIES" // the one reply of each batch

	BucketTools     = "tools"     // definitions of tools
	BucketWorkers   = "workers"   // presence of workers
	BucketApprovals = "approvals" // index of the calls that wait for a person
	BucketKeys      = "keys"      // keys of the audit log's hashes; only daemons may read them
	Objects         = "OBJECTS"   // large bodies by digest
)

// CoordinatorsConsumer is the durable consumer that all coordinators share on BATCHES.
const CoordinatorsConsumer = "coordinators"
