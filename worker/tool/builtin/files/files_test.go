package files

import "github.com/toolfleet/toolfleet/worker/tool/builtin/builtintest"

// tools are the builtins of this package.
var tools = builtintest.Tools{"Read": NewRead, "Write": NewWrite, "Edit": NewEdit}

var (
	folder, put, get, callOf = builtintest.Folder, builtintest.Put, builtintest.Get, builtintest.Call
	run, text, refused       = tools.Run, tools.Text, tools.Refused
)

type in = builtintest.In
