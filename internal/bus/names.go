package bus

// The streams and buckets of a fleet, as wire.Names.Stream takes them.
const (
	Batches = "BATCHES" // the log: accepted batches that are not finished
	Jobs    = "JOBS"    // pointers to calls that should run
	Calls   = "CALLS"   // calls that claim: claims, results; plans, hand-backs, controls
	Results = "RESULTS" // results of calls that do not claim
	Audit   = "AUDIT"   // the audit log
	Dead    = "DEAD"    // dead letters, each with its reason
	Replies = "REPLIES" // the one reply of each batch

	BucketTools     = "tools"     // definitions
	BucketWorkers   = "workers"   // presence
	BucketApprovals = "approvals" // index of the calls that wait for a person
	BucketKeys      = "keys"      // keys of the audit log's hashes; only daemons may read them
	Objects         = "OBJECTS"   // large bodies by digest
)

// CoordinatorsConsumer is the durable that all coordinators share on BATCHES.
const CoordinatorsConsumer = "coordinators"
