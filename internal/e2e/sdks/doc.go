// Package sdks tests toolfleet as an MCP server: with the MCP clients from npm that agents
// use, and with the conformance suite of the protocol. It also serves the tools of MCP servers
// from npm through a fleet. It has only tests. `.ci/run sdks` installs the clients in a folder
// that TOOLFLEET_SDKS names, and runs the tests.
//
//	package.json              the clients, with their versions, and three servers
//	clients/cases.mjs         the cases, for all of them
//	clients/*.mjs             a program for each client; oldnode.mjs is for the suite
//	conformance-*.yml         what the conformance suite finds missing, and why
//
// A test skips without TOOLFLEET_SDKS. SDK_ROUNDS is how often the order of calls is tested.
// SDK_RESULTS names a folder that keeps the results of the suite.
package sdks
