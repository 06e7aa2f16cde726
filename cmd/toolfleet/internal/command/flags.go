package command

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
}

// OutputFlags holds the flag of commands that print text or JSON.
type OutputFlags struct {
	Output string `short:"o" enum:"text,json" default:"text" placeholder:"text|json" help:"How to print: text or json."`
}

// JSON reports whether the command prints JSON.
func (s OutputFlags) JSON() bool { return s.Output == "json" }
