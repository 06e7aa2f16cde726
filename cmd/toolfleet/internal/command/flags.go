package command

import (
	"fmt"

	"github.com/alecthomas/kong"
)

// ToolFlags holds the flags that select the tools.
type ToolFlags struct {
	Tools   string `setting:"tools" placeholder:"FILE"`
	Root    string `setting:"root" placeholder:"DIR"`
	MCP     string `setting:"mcp" placeholder:"FILE"`
	Secrets string `setting:"secrets" placeholder:"DIR"`
}

// ServerFlags holds the flags of the NATS server in this process.
type ServerFlags struct {
	Listen string `setting:"server.listen" placeholder:"ADDR"`
	Data   string `setting:"server.data" placeholder:"DIR"`
	Sync   string `setting:"server.sync" placeholder:"always|DURATION"`
	Open   Switch `setting:"server.open"`
}

// Switch is the flag of a setting that is on or off. The flag alone turns the setting on. The
// flag may have the value true or false.
type Switch string

// IsBool tells kong that the flag needs no value.
func (Switch) IsBool() bool { return true }

// Decode reads the flag.
func (s *Switch) Decode(ctx *kong.DecodeContext) error {
	*s = "true"
	next := ctx.Scan.Peek()
	word, isText := next.Value.(string)
	if next.Type == kong.FlagValueToken || isText && (word == "true" || word == "false") {
		*s = Switch(fmt.Sprint(ctx.Scan.Pop().Value))
	}
	return nil
}

// OutputFlags holds the flag of commands that print text or JSON.
type OutputFlags struct {
	Output string `short:"o" enum:"text,json" default:"text" placeholder:"text|json" help:"How to print: text or json."`
}

// JSON reports whether the command prints JSON.
func (s OutputFlags) JSON() bool { return s.Output == "json" }
