// Package builtin lists the tools that come with every worker: Read, Glob, Grep, Write and
// Edit for the files of one folder, Bash, and four for demos, tests and load runs (noop,
// sleep, fail, blob). Their arguments have the names that coding agents know.
//
//	files      Read, Write, Edit
//	search     Glob, Grep
//	bash       Bash
//	rootdir    confines the file tools to the folder
//	glob       matches paths
//	filetext   lines and characters of files
//	base       arguments, refusals, limits
//
// The file tools stay inside their [Root], except for hard links. A hard link in the folder to
// a file outside looks like a file of the folder, so Read shows the file outside. (Write and
// Edit replace the link and leave the file outside unchanged.) A user who can make hard links
// in the folder can therefore read the files that the links lead to. Bash runs in a sandbox.
//
// In the semantic phase, Check refuses as many bad calls as it can before they run. The folder
// may change before the execute phase, so Run checks again and gives the same errors.
package builtin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/bash"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/files"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/search"
)

// Root is the working folder of a worker's file tools.
type Root = rootdir.Root

// OpenRoot opens the folder to which the file tools are confined.
func OpenRoot(dir string) (*Root, error) { return rootdir.Open(dir) }

// spec is one builtin: its definition, and its runner on a root.
type spec struct {
	promise func() schemas.Tool
	runner  func(*Root, *sandbox.Box) tool.Runner
}

var specs = map[string]spec{
	"Read":  {files.ReadPromise, onFiles(files.NewRead)},
	"Glob":  {search.GlobPromise, onFiles(search.NewGlob)},
	"Grep":  {search.GrepPromise, onFiles(search.NewGrep)},
	"Write": {files.WritePromise, onFiles(files.NewWrite)},
	"Edit":  {files.EditPromise, onFiles(files.NewEdit)},
	"Bash":  {bash.Promise, bash.New},
	"noop":  noopSpec(),
	"sleep": sleepSpec(),
	"fail":  failSpec(),
	"blob":  blobSpec(),
}

// Names returns the builtins that work in a folder, in the order of help texts and listings.
func Names() []string { return []string{"Read", "Glob", "Grep", "Write", "Edit", "Bash"} }

// Promise returns the definition of the builtin with this name. ok is false if there is
// none. A tools file may give the tool another name, kind or schema.
func Promise(name string) (schemas.Tool, bool) {
	s, ok := specs[name]
	if !ok {
		return schemas.Tool{}, false
	}
	return s.promise(), true
}

// onFiles makes the runner of a tool that runs no commands.
func onFiles(runner func(*Root) tool.Runner) func(*Root, *sandbox.Box) tool.Runner {
	return func(root *Root, _ *sandbox.Box) tool.Runner { return runner(root) }
}

// New returns the runner of the builtin with this name. The builtins of [Names] need a
// root; the demo builtins ignore it. box confines the commands of Bash.
func New(name string, root *Root, box *sandbox.Box) (tool.Runner, error) {
	s, ok := specs[name]
	if !ok {
		return nil, fmt.Errorf("no builtin %.80q (there are %s)", name, strings.Join(rawjson.SortedKeys(specs), ", "))
	}
	if root == nil && slices.Contains(Names(), name) {
		return nil, fmt.Errorf("builtin %s needs a root folder", name)
	}
	return s.runner(root, box), nil
}
