package search

import "github.com/toolfleet/toolfleet/worker/tool/builtin/builtintest"

// tools are the builtins of this package.
var tools = builtintest.Tools{"Glob": NewGlob, "Grep": NewGrep}

var (
	folder, callOf = builtintest.Folder, builtintest.Call
	text, refused  = tools.Text, tools.Refused
)

type in = builtintest.In
