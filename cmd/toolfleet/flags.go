package main

// served holds the flags that select the tools.
type served struct {
	Tools string `setting:"tools" placeholder:"FILE"`
	Root  string `setting:"root" placeholder:"DIR"`
}

// embedded holds the flags of the NATS server in our own process.
type embedded struct {
	Listen string `setting:"server.listen" placeholder:"ADDR"`
	Data   string `setting:"server.data" placeholder:"DIR"`
	Sync   string `setting:"server.sync" placeholder:"always|DURATION"`
}

// shape holds the flag of commands that print text or JSON.
type shape struct {
	Output string `short:"o" enum:"text,json" default:"text" placeholder:"text|json" help:"How to print: text or json."`
}

func (s shape) json() bool { return s.Output == "json" }
