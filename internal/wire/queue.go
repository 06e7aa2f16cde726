package wire

import (
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

// Queue is a queue of jobs in a worker's announcement.
type Queue struct {
	// Token names the queue in the subjects of its jobs: see [QueueToken]. If all workers of a
	// pool share one queue, Token is the name of the pool.
	Token string `json:"token"`
	// Tools has the digests of the tools that the worker serves from the queue, sorted.
	Tools []string `json:"tools"`
}

// IsOf reports whether the queue belongs to a pool: it is the shared queue of the pool, or that
// of the pool's toolset with exactly these tools.
func (q Queue) IsOf(pool string) bool {
	return q.Token == pool || len(q.Tools) > 0 && q.Token == QueueToken(pool, q.Tools)
}

// QueueRequest asks a coordinator to make the consumer of the queue that the subject names. If
// the coordinator cannot make it, the answer has the header of an error.
type QueueRequest struct {
	V int `json:"v"`
	// AckWaitMS is how long a worker may give no sign of life about a delivery, in
	// milliseconds.
	AckWaitMS int64 `json:"ack_wait_ms"`
	// MaxInFlight limits the unsettled deliveries in the whole fleet. 0: no limit.
	MaxInFlight int `json:"max_in_flight,omitempty"`
}

// toolsetMark separates the pool from the digest of a toolset. No name of a pool contains it.
const toolsetMark = "~"

// toolsetDigits is the length of a toolset's digest in a queue token.
const toolsetDigits = 16

// QueueToken returns the token of a toolset's queue: the pool, and a short digest of the
// tools' digests. The order of tools does not matter. All workers of a pool that serve the
// same tools share this queue.
func QueueToken(pool string, tools []string) string {
	tools = slices.Compact(slices.Sorted(slices.Values(tools)))
	return pool + toolsetMark + messages.Digest([]byte(strings.Join(tools, "\n")))[:toolsetDigits]
}

// WaitingQueue returns the token of the queue in which jobs of a pool wait while no worker
// serves their tools. It is the queue of the toolset without tools. No worker takes jobs from
// it.
func WaitingQueue(pool string) string { return QueueToken(pool, nil) }

// PoolOf returns the pool of a queue token, or "" if token is not a queue token.
func PoolOf(token string) string {
	pool, digest, toolset := strings.Cut(token, toolsetMark)
	if !messages.IsToken(pool) || toolset && (len(digest) != toolsetDigits || strings.Trim(digest, "0123456789abcdef") != "") {
		return ""
	}
	return pool
}
