//go:build !race

package fleettest

// RaceDetector says whether the race detector is on.
const RaceDetector = false
