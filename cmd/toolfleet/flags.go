package main

import "github.com/alecthomas/kong"

// A flag that is a setting carries its key in the tag setting. Its help, with the default and the
// environment name, comes from the setting; see config.Help.

var flagGroups = []kong.Group{
	{Key: "server", Title: "NATS server"},
	{Key: "general", Title: "Settings"},
}

// general holds the flags of every command that reads settings.
type general struct {
	Config    string `setting:"config" placeholder:"FILE" group:"general" help:"File with settings, or none. Default: toolfleet.yaml, where there is one [$$TOOLFLEET_CONFIG]."`
	LogLevel  string `setting:"log.level" placeholder:"LEVEL" group:"general"`
	LogFormat string `setting:"log.format" placeholder:"FORMAT" group:"general"`
}

// server holds the flags of every command that may connect to a NATS server.
type server struct {
	general
	NATS        string `name:"nats" setting:"nats.url" placeholder:"URL" group:"server"`
	Creds       string `setting:"nats.creds" placeholder:"FILE" group:"server"`
	Nkey        string `setting:"nats.nkey" placeholder:"FILE" group:"server"`
	User        string `setting:"nats.user" placeholder:"NAME" group:"server"`
	Password    string `setting:"nats.password" placeholder:"TEXT" group:"server"`
	TLSCA       string `name:"tls-ca" setting:"nats.tls_ca" placeholder:"FILE" group:"server"`
	TLSCert     string `name:"tls-cert" setting:"nats.tls_cert" placeholder:"FILE" group:"server"`
	TLSKey      string `name:"tls-key" setting:"nats.tls_key" placeholder:"FILE" group:"server"`
	InboxPrefix string `setting:"nats.inbox_prefix" placeholder:"PREFIX" group:"server"`
	Prefix      string `setting:"prefix" placeholder:"TOKEN" group:"server"`
}

// served holds the flags that select the tools.
type served struct {
	Tools string `setting:"tools" placeholder:"FILE"`
	Root  string `setting:"root" placeholder:"DIR"`
}

// governed holds the flag that names the policy file.
type governed struct {
	Policy string `setting:"policy" placeholder:"FILE"`
}

// embedded holds the flags of the NATS server in our own process.
type embedded struct {
	Listen string `setting:"server.listen" placeholder:"ADDR"`
	Data   string `setting:"server.data" placeholder:"DIR"`
	Sync   string `setting:"server.sync" placeholder:"always|DURATION"`
}

// listens holds the flag of a daemon's HTTP server.
type listens struct {
	HTTP string `name:"http" setting:"http" placeholder:"ADDR"`
}

// shape holds the flag of commands that print text or JSON.
type shape struct {
	Output string `short:"o" enum:"text,json" default:"text" placeholder:"text|json" help:"How to print: text or json."`
}

func (s shape) json() bool { return s.Output == "json" }
