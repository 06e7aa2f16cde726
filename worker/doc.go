// Package worker serves tools written in Go to a fleet. A first tool and the program around it:
//
//	package main
//
//	import (
//		"context"
//		"strings"
//
//		"github.com/toolfleet/toolfleet/worker"
//	)
//
//	type In struct {
//		Text string `json:"text" jsonschema:"the text to shout"`
//	}
//
//	func main() {
//		worker.Main(worker.New("shout", "Says a text louder.", worker.Compute,
//			func(_ context.Context, in In) (string, error) { return strings.ToUpper(in.Text) + "!", nil }))
//	}
//
// [New] makes a tool of a function; its options say what else the tool promises. [Main] is the
// whole of a program, with the flags, settings and signals of `toolfleet worker`. [Run] is for a
// program with a main of its own. [Tool.Try] runs a tool once, in a test.
//
// A worker announces its tools, takes calls from the fleet, checks their arguments, hooks and
// permissions, runs the tool, and stores the result. Any number of workers may share a pool, and
// all workers of a pool should serve the same tools: see docs/tools.md.
package worker

import "github.com/toolfleet/toolfleet/messages"

// Kinds say what a tool does to the world. The kind decides what may run at the same time, and what
// may run again.
const (
	// Read looks and changes nothing. Reads run beside each other, and again after a crash. Default
	// timeout 5 s.
	Read = messages.KindRead
	// Compute needs nothing but its arguments. It runs as a read does. Default timeout 2 s.
	Compute = messages.KindCompute
	// Write changes something. The writes of a session run one at a time, in order. If the worker
	// of a write is lost, the write does not run again, unless the tool is [Idempotent] or
	// [Checkable]. Default timeout 30 s.
	Write = messages.KindWrite
)
