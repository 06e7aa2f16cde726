package bus

// The streams and buckets of a fleet. wire.Names.Stream makes full names from these.
const (
	Batches = "BATCHES" // the log: accepted batches that are not finished
	Jobs    = "JOBS"    // calls that should run; each job is only a pointer
	Calls   = "CALLS"   // records of calls that need a claim; plans, hand-backs, controls
	Results = "RESULTS" // results of calls that run without a claim
	Audit   = "AUDIT"   // the audit log
	Dead    = "DEAD"    // dead letters, each with its reason
	Replies = "REPLIES" // the reply of each batch

	BucketTools     = "tools"     // definitions of tools
	BucketWorkers   = "workers"   // presence of workers
	BucketApprovals = "approvals" // index of the calls that wait for a person
	BucketKeys      = "keys"      // keys for the hashes in the audit log; only daemons may read them
	Objects         = "OBJECTS"   // large bodies by digest
)

// CoordinatorsConsumer is the durable consumer that all coordinators share on BATCHES.
const CoordinatorsConsumer = "coordinators"
