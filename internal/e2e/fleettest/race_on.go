//go:build race

package fleettest

// RaceDetector is whether the race detector is on.
const RaceDetector = true
