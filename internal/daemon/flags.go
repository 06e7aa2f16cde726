package daemon

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/internal/config"
)

// A flag of a setting has the setting's key in its struct tag "setting". The flag's help text
// comes from the table of settings: see config.Help.

// FlagGroups are the titles under which help lists the flags.
var FlagGroups = []kong.Group{
	{Key: "server", Title: "NATS server"},
	{Key: "general", Title: "Settings"},
}

// General holds the flags of every command that reads settings.
type General struct {
	Config    string `setting:"config" placeholder:"FILE" group:"general" help:"File with settings, or none. Default: toolfleet.yaml, where there is one [$$TOOLFLEET_CONFIG]."`
	LogLevel  string `setting:"log.level" placeholder:"LEVEL" group:"general"`
	LogFormat string `setting:"log.format" placeholder:"FORMAT" group:"general"`
}

// Server holds the flags of every command that may connect to a NATS server.
type Server struct {
	General
	Context     string `setting:"context" placeholder:"NAME" group:"server" help:"Context with the server and who asks, or none; see toolfleet context. Default: the selected one, for daemons none [$$TOOLFLEET_CONTEXT]."`
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

// Governed holds the flag that names the policy file.
type Governed struct {
	Policy string `setting:"policy" placeholder:"FILE"`
}

// Listens holds the flag of a daemon's HTTP server.
type Listens struct {
	HTTP string `name:"http" setting:"http" placeholder:"ADDR"`
}

// daemons lists the commands that ignore the context that a person has selected: commands that
// run by themselves, and commands that other programs start.
var daemons = []string{"worker", "coordinator", "http", "mcp", "nats", "dev"}

// GivenFlags returns the settings of a command line.
func GivenFlags(parsed *kong.Context) (given config.Sources) {
	words := strings.Fields(parsed.Command())
	given.Selection = len(words) > 0 && !slices.Contains(daemons, words[0])
	for _, f := range parsed.Flags() {
		switch key := f.Tag.Get("setting"); {
		case !f.Set || key == "":
		case key == "config":
			given.File = f.Target.String()
		case key == "context":
			given.Context = f.Target.String()
		default:
			given.Flags = append(given.Flags, config.Flag{Name: "--" + f.Name, Key: key, Text: f.Target.String()})
		}
	}
	return given
}

// ExplainSettings gives each flag of a setting the help text of that setting. Placeholders in
// the struct tags would give the same texts. But then each start would search the whole help
// text for each flag.
func ExplainSettings(parser *kong.Kong) error {
	help := config.Help()
	return kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok && flag.Help == "" {
			key := flag.Tag.Get("setting")
			if flag.Help = help[key]; flag.Help == "" {
				return fmt.Errorf("--%s: there is no setting %q", flag.Name, key)
			}
		}
		return next(nil)
	})
}
