package bash

import "github.com/toolfleet/toolfleet/worker/tool/builtin/builtintest"

// tools are the builtins of this package.
var tools = builtintest.Tools{"Bash": New}

var (
	bashFolder, callOf = builtintest.BashFolder, builtintest.Call
	refused            = tools.Refused
)

type in = builtintest.In
