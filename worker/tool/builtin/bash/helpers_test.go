package bash

import (
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/builtintest"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// tools are the builtins of this package.
var tools = builtintest.Tools{"Bash": boxed}

var (
	bashFolder, callOf = builtintest.BashFolder, builtintest.Call
	refused            = tools.Refused
)

type in = builtintest.In

// boxed returns Bash in a sandbox in which only the root folder can be changed.
func boxed(root *rootdir.Root) tool.Runner {
	box, err := builtintest.Box(root.Dir())
	if err != nil {
		panic(err)
	}
	return New(root, box)
}
