//go:build !linux

package natstest

// inMemory returns "", because no folder of this system is known to be in memory.
func inMemory() string { return "" }
