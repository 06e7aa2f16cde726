package builtin

import (
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/builtintest"
)

// tools are all builtins.
var tools = func() builtintest.Tools {
	all := builtintest.Tools{}
	for name, s := range specs {
		all[name] = func(root *Root) tool.Runner { return s.runner(root, nil) }
	}
	return all
}()

var (
	folder, put, get, callOf = builtintest.Folder, builtintest.Put, builtintest.Get, builtintest.Call
	run, text, refused       = tools.Run, tools.Text, tools.Refused
)

type in = builtintest.In
