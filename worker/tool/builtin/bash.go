package builtin

import (
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

func bashSpec() spec {
	return spec{
		promise: func() schemas.Tool {
			return schemas.Tool{Name: "Bash", Kind: messages.Write, MaxOutput: MaxOutput, Truncate: schemas.TruncateTail}
		},
		runner: func(*Root) tool.Runner { return nil },
	}
}
