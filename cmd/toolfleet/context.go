package main

import (
	"cmp"
	"net/url"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/messages"
)

type contextCmd struct {
	Add    contextAddCmd    `cmd:"" help:"Make a context."`
	Ls     contextLsCmd     `cmd:"" help:"List the contexts, those of the nats command too."`
	Select contextSelectCmd `cmd:"" help:"Select the context that commands use without --context; none selects none."`
	Rm     contextRmCmd     `cmd:"" help:"Remove a context."`
}

type contextAddCmd struct {
	Name        string `arg:"" help:"Its name."`
	NATS        string `name:"nats" placeholder:"URL" help:"NATS server, or several with commas between them."`
	Creds       string `placeholder:"FILE" help:"File with NATS credentials."`
	Nkey        string `placeholder:"FILE" help:"File with an nkey seed."`
	TLSCA       string `name:"tls-ca" placeholder:"FILE" help:"File with certificate authorities."`
	TLSCert     string `name:"tls-cert" placeholder:"FILE" help:"File with our TLS certificate."`
	TLSKey      string `name:"tls-key" placeholder:"FILE" help:"File with the key of our TLS certificate."`
	InboxPrefix string `placeholder:"PREFIX" help:"Where answers come in, for users that may only listen there."`
	Prefix      string `placeholder:"TOKEN" help:"First token of every subject."`
	Tenant      string `placeholder:"TOKEN" help:"Tenant whose batches the commands speak of."`
	API         string `name:"api" placeholder:"URL" help:"Address of the HTTP API, for programs that read the context."`
	APIToken    string `name:"api-token" placeholder:"FILE" help:"File with the token of the HTTP API."`
	Description string `placeholder:"TEXT" help:"What it is, for people."`
	Select      bool   `help:"Select it, too."`
}

// Help returns the text that --help shows below the command's usage.
func (contextAddCmd) Help() string {
	return `Example: toolfleet context add prod --nats tls://nats.example.com --creds ~/prod.creds --tenant acme --select

The file is NAME.json in toolfleet/context of the user's configuration folder, and only the user may read it. It holds names of
files, no keys. A context that --context or TOOLFLEET_CONTEXT names wins over toolfleet.yaml, one that is selected does not.
Flags and the environment win over both; with another server none of the context's credentials are used. worker, coordinator,
http, mcp and dev use a context only when it is named.`
}

func (c contextAddCmd) Run(a *command.App) error {
	made := config.Context{
		Name: c.Name, Description: c.Description, URL: c.NATS, Creds: c.Creds, NKey: c.Nkey, TLSCA: c.TLSCA, TLSCert: c.TLSCert, TLSKey: c.TLSKey,
		InboxPrefix: c.InboxPrefix, Prefix: c.Prefix, Tenant: c.Tenant, APIURL: c.API, APITokenFile: c.APIToken,
	}
	if err := config.CheckContextName(c.Name); err != nil {
		return command.Usage(err)
	}
	if c.NATS == "" && c.API == "" {
		return command.Usagef("a context needs a server: --nats URL, or --api URL")
	}
	if u, err := url.Parse(c.API); c.API != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return command.Usagef("--api %.200q: want an address such as https://toolfleet.example.com", config.HideUser(c.API))
	}
	if c.Tenant != "" && !messages.IsToken(c.Tenant) {
		return command.Usagef("--tenant %.80q: want 1 to 64 of [A-Za-z0-9_-]", c.Tenant)
	}
	for _, path := range []*string{&made.Creds, &made.NKey, &made.TLSCA, &made.TLSCert, &made.TLSKey, &made.APITokenFile} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err == nil {
			_, err = os.Stat(abs)
		}
		if err != nil {
			return command.Usage(err)
		}
		*path = abs
	}
	if err := config.AddContext(made); err != nil {
		return err
	}
	if c.Select {
		return config.SelectContext(c.Name)
	}
	return nil
}

type contextLsCmd struct {
	command.OutputFlags
}

// shownContext is a context as ls prints it, without secrets.
type shownContext struct {
	Name        string `json:"name"`
	Selected    bool   `json:"selected"`
	NATS        string `json:"nats,omitempty"`
	Tenant      string `json:"tenant,omitempty"`
	API         string `json:"api,omitempty"`
	APIToken    string `json:"api_token_file,omitempty"`
	From        string `json:"from"`
	Description string `json:"description,omitempty"`
}

func (c contextLsCmd) Run(a *command.App) error {
	all, err := config.Contexts()
	if err != nil {
		return err
	}
	selected := config.SelectedContext()
	shown := []shownContext{}
	rows := [][]string{{"NAME", "SELECTED", "NATS", "TENANT", "API", "FROM", "DESCRIPTION"}}
	for _, x := range all {
		s := shownContext{
			Name: x.Name, Selected: x.Name == selected, NATS: config.HideUser(x.URL), Tenant: x.Tenant, API: config.HideUser(x.APIURL), APIToken: x.APITokenFile,
			From: "toolfleet", Description: x.Description,
		}
		if x.OfNATS {
			s.From = "nats"
		}
		shown = append(shown, s)
		mark := ""
		if s.Selected {
			mark = "*"
		}
		rows = append(rows, []string{s.Name, mark, terminal.Clean(s.NATS, 80), cmp.Or(terminal.Clean(s.Tenant, 64), "-"), cmp.Or(terminal.Clean(s.API, 80), "-"), s.From, terminal.Clean(s.Description, 200)})
	}
	if c.JSON() {
		return a.Print(map[string]any{"contexts": shown})
	}
	if len(all) == 0 {
		a.Say("There is no context; `toolfleet context add` makes one.")
	}
	return a.Table(rows)
}

type contextSelectCmd struct {
	Name string `arg:"" help:"Its name, or none."`
}

func (c contextSelectCmd) Run(*command.App) error {
	if c.Name == config.NoContext {
		return config.SelectContext("")
	}
	if _, err := config.FindContext(c.Name); err != nil {
		return err
	}
	return config.SelectContext(c.Name)
}

type contextRmCmd struct {
	Name string `arg:"" help:"Its name."`
}

func (c contextRmCmd) Run(*command.App) error { return config.RemoveContext(c.Name) }
