package config

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/worker"
)

// HiddenFiles returns the files and folders of the settings that no command may read: keys, secrets
// and the server's data.
func (c *Config) HiddenFiles() []string {
	return given(c.NATS.Creds, c.NATS.NKey, c.NATS.TLSKey, string(c.Approver.Key), string(c.Server.Data), string(c.Secrets))
}

// FixedFiles returns the files of the settings that no command may change.
func (c *Config) FixedFiles() []string {
	fixed := given(string(c.Tools), string(c.MCP), string(c.Policy), c.File(), string(c.API.Tokens))
	if keys := c.API.JWT.Keys; keys != "" && !strings.Contains(keys, "://") {
		fixed = append(fixed, keys)
	}
	return fixed
}

func given(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// Servers returns the NATS servers that the settings name, as host:port.
func (c *Config) Servers() (all []string) {
	for address := range strings.SplitSeq(c.NATS.URL, ",") {
		if !strings.Contains(address, "://") {
			address = "nats://" + address
		}
		u, err := url.Parse(strings.TrimSpace(address))
		if err != nil || u.Hostname() == "" {
			continue // no connection is made to it either
		}
		all = append(all, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222")))
	}
	return all
}

// hookPlace says where the commands of hooks run, and what they must not reach. roots are the paths
// of the folder of file tools, in which commands may have made links.
func (c *Config) hookPlace(p *Policy, roots []string) worker.Place {
	place := worker.Place{
		Dir: p.dir, Secrets: secrets.Folder(c.Secrets), Hidden: c.HiddenFiles(), Fixed: c.FixedFiles(), Fleet: c.Servers(), Tighten: p.Sandbox,
		Shared: roots,
	}
	for _, hook := range p.hooks {
		if hook.Sandbox != nil {
			place.States = append(place.States, hook.Sandbox.State...)
		}
	}
	return place
}
