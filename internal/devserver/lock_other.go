//go:build !unix

package devserver

// lock does nothing: there is no advisory lock here, so the user must keep a second server off dir.
func lock(string) (unlock func() error, err error) { return func() error { return nil }, nil }
