//go:build race

package e2e

// raceDetector: nats-server compares its options with those of a reload field by field, the counters of its accounts
// included, which it counts on meanwhile. The race detector takes that for what it is.
const raceDetector = true
