//go:build !unix

package worker

import "time"

// holdTemp does nothing, because this system has no locks that end with their process.
func holdTemp(string, time.Time) error { return nil }
