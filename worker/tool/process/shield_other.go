//go:build !linux

package process

// Shield does nothing on this system.
func Shield() error { return nil }
