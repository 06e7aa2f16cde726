//go:build !unix

package worker

import "time"

// holdTemp does nothing: there are no locks that end with their process.
func holdTemp(string, time.Time) error { return nil }
