//go:build !unix

package devserver

// lock does nothing, because this system has no advisory locks. The user must not start a
// second server on dir.
func lock(string) (unlock func() error, err error) { return func() error { return nil }, nil }
