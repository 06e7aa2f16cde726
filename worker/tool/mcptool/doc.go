// Package mcptool runs the tools of servers that speak the Model Context Protocol: programs that
// are started and keep running, and services at a URL.
//
//	Open -> Server (a pool of processes or sessions) -> Runner of each tool -> call
//	                 |
//	                 +- session: one process, with its list of definitions
//
// A session is started when a call needs one. After a failed start the next one waits, longer each
// time. A session runs one write, or any number of reads of one tenant.
//
// When a call is cut off, the server is told (notifications/cancelled). If it does not answer
// within CancelGrace, its process is killed with everything that it started: a call that has a
// result must not change the world any more. If a process dies in a write, the outcome is unknown.
// A read runs again in another process.
//
// The definition in force is the accepted one: from the lock file, or else from the server's list
// when the worker started. A tool whose definition has changed since then is not run.
//
// A server is not trusted. Its list is bounded and cleaned, a message has at most 16 MiB, and any
// other line that it prints goes to the log.
package mcptool
