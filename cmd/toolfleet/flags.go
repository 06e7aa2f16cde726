package main

import "github.com/alecthomas/kong"

// Flags that are settings carry the tag setting with the key. Their help, with default and environment
// name, is the setting's own; see config.Help.

var flagGroups = []kong.Group{
	{Key: "server", Title: "NATS server"},
	{Key: "general", Title: "Settings"},
}

// general is the flags that every command has.
type general struct {
	Config    string `setting:"config" placeholder:"FILE" group:"general" help:"File with settings, or none. Default: toolfleet.yaml, where there is one [$$TOOLFLEET_CONFIG]."`
	LogLevel  string `setting:"log.level" placeholder:"LEVEL" group:"general" help:"${log_level}"`
	LogFormat string `setting:"log.format" placeholder:"FORMAT" group:"general" help:"${log_format}"`
}

// server is the flags of every command that may speak to a NATS server.
type server struct {
	general
	NATS        string `name:"nats" setting:"nats.url" placeholder:"URL" group:"server" help:"${nats_url}"`
	Creds       string `setting:"nats.creds" placeholder:"FILE" group:"server" help:"${nats_creds}"`
	Nkey        string `setting:"nats.nkey" placeholder:"FILE" group:"server" help:"${nats_nkey}"`
	User        string `setting:"nats.user" placeholder:"NAME" group:"server" help:"${nats_user}"`
	Password    string `setting:"nats.password" placeholder:"TEXT" group:"server" help:"${nats_password}"`
	TLSCA       string `name:"tls-ca" setting:"nats.tls_ca" placeholder:"FILE" group:"server" help:"${nats_tls_ca}"`
	TLSCert     string `name:"tls-cert" setting:"nats.tls_cert" placeholder:"FILE" group:"server" help:"${nats_tls_cert}"`
	TLSKey      string `name:"tls-key" setting:"nats.tls_key" placeholder:"FILE" group:"server" help:"${nats_tls_key}"`
	InboxPrefix string `setting:"nats.inbox_prefix" placeholder:"PREFIX" group:"server" help:"${nats_inbox_prefix}"`
	Prefix      string `setting:"prefix" placeholder:"TOKEN" group:"server" help:"${prefix}"`
}

// served is the flags that say which tools there are.
type served struct {
	Tools string `setting:"tools" placeholder:"FILE" help:"${tools}"`
	Root  string `setting:"root" placeholder:"DIR" help:"${root}"`
}

// governed is the flag that says who may do what.
type governed struct {
	Policy string `setting:"policy" placeholder:"FILE" help:"${policy}"`
}

// embedded is the flags of the NATS server in our own process.
type embedded struct {
	Listen string `setting:"server.listen" placeholder:"ADDR" help:"${server_listen}"`
	Data   string `setting:"server.data" placeholder:"DIR" help:"${server_data}"`
	Sync   string `setting:"server.sync" placeholder:"always|DURATION" help:"${server_sync}"`
}

// listens is the flag of a daemon's HTTP server.
type listens struct {
	HTTP string `name:"http" setting:"http" placeholder:"ADDR" help:"${http}"`
}

// shape is the flag of commands that print a table or JSON.
type shape struct {
	Output string `short:"o" enum:"text,json" default:"text" placeholder:"text|json" help:"How to print: text or json."`
}

func (s shape) json() bool { return s.Output == "json" }
