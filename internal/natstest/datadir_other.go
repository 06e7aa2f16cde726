//go:build !linux

package natstest

// inMemory returns "": no folder is known to be in memory.
func inMemory() string { return "" }
