// Package sdks tries toolfleet as an MCP server with the MCP clients that agents use, from npm, and
// with the conformance suite of the protocol, and serves the tools of MCP servers from npm through
// a fleet. It has only tests: `.ci/run sdks` installs the
// clients and runs them, in a folder that TOOLFLEET_SDKS names.
//
//	package.json              the clients, with their versions, and three servers
//	clients/cases.mjs         the cases, for all of them
//	clients/*.mjs             a program for each client; oldnode.mjs is for the suite
//	conformance-*.yml         what the conformance suite finds missing, and why
//
// A test skips without TOOLFLEET_SDKS. SDK_ROUNDS is how often the order of calls is looked at, and
// SDK_RESULTS names a folder that keeps what the suite has found.
package sdks
