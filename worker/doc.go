// Package worker serves tools written in Go to a fleet. [New] makes a tool from a function.
// Its options set what else the tool promises. [Main] is a whole program, with the flags,
// settings and signals of `toolfleet worker`. [Run] is for a program with its own main
// function. [Tool.Try] runs a tool once, in a test.
package worker

import "github.com/toolfleet/toolfleet/messages"

// Kinds say what a tool does to the world. The kind decides which calls may run at the same
// time, and which may run again.
const (
	// Read looks and changes nothing. Reads may run at the same time. A read runs again if its
	// worker is lost. Default timeout 5 s.
	Read = messages.KindRead
	// Compute needs nothing but its arguments. A compute runs under the rules of a Read.
	// Default timeout 2 s.
	Compute = messages.KindCompute
	// Write changes something. The writes of a session run one at a time, in order. If the worker
	// of a write is lost, the write does not run again, unless the tool is [Idempotent] or
	// [Checkable]. Default timeout 30 s.
	Write = messages.KindWrite
)
