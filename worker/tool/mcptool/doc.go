// Package mcptool runs the tools of servers that speak the Model Context Protocol (MCP). A
// server is a program that is started and keeps running, or a service at a URL.
//
//	Open -> Server (a pool of processes or sessions) -> Runner of each tool -> call
//	                 |
//	                 +- session: one process, with its list of definitions
//
// A session is started when a call needs one. After a failed start, the next start has to
// wait, and the wait becomes longer each time. A process runs one write at a time, or several
// reads of one tenant.
//
// When a call is cut off, the server gets a notifications/cancelled. If a program does not
// answer within CancelGrace, its process is killed with everything that it started: a call
// that has a result must not change the world any more. If a process dies during a write, the
// outcome is unknown. If it dies during a read, the read runs again in another process.
//
// The definition in force is the accepted one. It comes from the lock file or, without one,
// from the server's list when the worker started. A tool whose definition has changed since
// then is not run.
//
// A server is not trusted. Its list is bounded and cleaned, a message has at most 16 MiB, and any
// other line that it prints goes to the log.
package mcptool
