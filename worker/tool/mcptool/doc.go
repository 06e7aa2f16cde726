// Package mcptool runs the tools of servers that speak the Model Context Protocol: programs that
// are started and stay, and services at a URL.
//
//	Open -> Server (a pool of processes or sessions) -> Runner of each tool -> call
//	                 |
//	                 +- session: one process, with its list of definitions
//
// A session is started when a call needs it and there is none, and again with a growing wait when
// it could not be started. It runs one write, or any number of reads of one tenant.
//
// A call that is cut off tells the server (notifications/cancelled). If the server does not answer
// within a moment, its process is killed, with everything that it started: a call that has a result
// must not change the world any more. A process that dies in a write leaves an unknown outcome; a
// read is run again in another process.
//
// A definition counts as it was accepted: by the lock file, or else as the server listed it when
// the worker started. A tool whose definition has changed since is not run.
//
// Nothing that a server says is trusted: what it lists is bounded and cleaned, its messages have at
// most 16 MiB, and words that it prints between its messages go to the log.
package mcptool
