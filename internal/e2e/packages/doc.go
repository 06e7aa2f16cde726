// Package packages tests our packages for TypeScript and Python. It has only tests:
//
//	TestPackages    the tests in clients/, in their own languages
//	TestPrograms    tools of each language, as long-lived programs (package programtest)
//	TestLive        a client and tools of each language with a real fleet
//	TestTable…      the shared table of client behaviour: TypeScript over NATS, and Go
//	Test…Recipes    each block of docs/recipes.md, with the SDK of npm and a scripted model
//
// Tests skip without Node 20 or Python 3.11. `.ci/run packages` installs the SDKs for
// TestRecipes, and the packed packages into empty projects.
package packages
