package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/identities"
)

type identitiesCmd struct {
	New         identitiesNewCmd         `cmd:"" help:"Write keys, the NATS server's configuration and certificates into a new folder."`
	Add         identitiesAddCmd         `cmd:"" help:"Make one more key, and let the server know it."`
	Renew       identitiesRenewCmd       `cmd:"" help:"Put another key in the place of one."`
	Rm          identitiesRmCmd          `cmd:"" help:"Take a key away."`
	Ls          identitiesLsCmd          `cmd:"" help:"List who the server knows."`
	Accounts    identitiesAccountsCmd    `cmd:"" help:"Print the server's accounts as one file, to include it in a configuration of yours."`
	Certificate identitiesCertificateCmd `cmd:"" help:"Make another certificate of the trial authority for the server."`
}

// identitiesFolder holds the flag that names the folder of all identities.
type identitiesFolder struct {
	Dir string `default:"identities" placeholder:"DIR" help:"Folder of the identities (default identities)."`
}

type identitiesNewCmd struct {
	identitiesFolder
	Tenant   []string `placeholder:"NAME" help:"A tenant of agents, with a key for its agents. May be given several times."`
	Worker   []string `placeholder:"NAME" help:"A worker: each has a key of its own. Several times, or not: one called worker."`
	Approver []string `placeholder:"NAME" help:"A person who decides. May be given several times."`
	Host     []string `placeholder:"NAME" help:"Name or address at which clients reach the server, for its certificate. The first is in the settings. Default localhost, 127.0.0.1, ::1."`
	URL      string   `name:"url" placeholder:"URL" help:"Server in the settings. Default: the first host, port 4222."`
	At       string   `placeholder:"DIR" help:"Where the folder nats will be on the server's machine. Default: where it is written."`
	TLSCert  string   `name:"tls-cert" placeholder:"FILE" help:"The server's certificate, if you have one. Default: one of a trial authority."`
	TLSKey   string   `name:"tls-key" placeholder:"FILE" help:"The key of that certificate."`
	TLSCA    string   `name:"tls-ca" placeholder:"FILE" help:"The authority of that certificate, for clients. Default: those of their systems."`
	NoTLS    bool     `name:"no-tls" help:"No TLS: only where nobody else can read the network."`
	MaxStore string   `placeholder:"SIZE" help:"Bound of all streams on disk, for example 10GB. Default: none but the disk."`
	Once     bool     `help:"If the folder has identities already, leave them and be done: for a step that runs at each start."`
}

// Help returns the text that --help shows below the command's usage.
func (identitiesNewCmd) Help() string {
	return `Each folder in DIR goes to one place: nats to the server, every other one to the program or person of its name. It has a
settings file for --config, a key, and the authority that signed the server's certificate. Nothing is replaced: a folder that has a
file already is refused. Files are readable by their owner alone.`
}

func (c identitiesNewCmd) Run(a *command.App) error {
	server := identities.ServerFile(c.Dir)
	if _, err := os.Stat(server); err == nil && c.Once {
		a.Say("%s has identities already", c.Dir)
		return nil
	}
	made, err := identities.New(c.Dir, identities.Options{
		Tenants: c.Tenant, Workers: c.Worker, Approvers: c.Approver, Hosts: c.Host, URL: c.URL, At: c.At, MaxStore: c.MaxStore,
		TLS: identities.TLS{None: c.NoTLS, Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA},
	})
	if err != nil {
		return command.Usage(err)
	}
	rows := [][]string{
		folderHead,
		{filepath.Dir(server), "the NATS server", "toolfleet nats --nats-config " + server + " --data DIR"},
	}
	for _, i := range made {
		rows = append(rows, folderRow(c.Dir, i))
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "ca", "ca.key")); err == nil {
		rows = append(rows, []string{filepath.Join(c.Dir, "ca"), "nobody: keep it", "toolfleet identities certificate"})
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	return sayApprovers(a.Stdout, made)
}

// folderHead names the columns of [folderRow].
var folderHead = []string{"FOLDER", "GOES TO", "AND IS USED WITH"}

// folderRow returns the row of the table that shows people what to do with an identity's folder.
func folderRow(dir string, i identities.Identity) []string {
	return []string{filepath.Join(dir, i.Name), goesTo(i), usedWith(dir, i)}
}

// goesTo says who gets the folder of an identity, for a person.
func goesTo(i identities.Identity) string {
	switch {
	case i.Kind == identities.Approver:
		return i.Name + ", who decides"
	case i.Kind == identities.Agent:
		return "agents of " + i.Tenant
	case i.Kind == identities.Worker && i.Tenant != "":
		return "the worker " + i.Name + " of " + i.Tenant
	case i.Kind == identities.Worker:
		return "the worker " + i.Name
	case i.Kind == identities.Operator:
		return "an operator"
	case i.Kind == identities.HTTP:
		return "HTTP servers"
	}
	return "coordinators"
}

// usedWith returns a command that uses an identity.
func usedWith(dir string, i identities.Identity) string {
	what := string(i.Kind)
	switch i.Kind {
	case identities.Approver:
		what = "approvals watch --tenant TENANT"
	case identities.Agent:
		what = "run BATCH"
	case identities.Operator:
		what = "doctor"
	case identities.Coordinator, identities.Worker, identities.HTTP:
	}
	return "toolfleet " + what + " --config " + filepath.Join(dir, i.Name, "toolfleet.yaml")
}

// sayApprovers prints the approvers as the policy file names them.
func sayApprovers(out io.Writer, all []identities.Identity) error {
	lines := ""
	for _, i := range all {
		if i.Kind == identities.Approver {
			lines += fmt.Sprintf("  - {name: %s, key: %s}\n", i.Name, i.Key)
		}
	}
	if lines == "" {
		return nil
	}
	_, err := fmt.Fprintf(out, "\nIn the policy file:\n\napprovers:\n%s", lines)
	return err
}

type identitiesAddCmd struct {
	identitiesFolder
	Kind   string   `arg:"" enum:"coordinator,worker,http,operator,approver,agent" help:"coordinator, worker, http, operator, approver or agent."`
	Name   string   `arg:"" help:"Its name, and that of its folder."`
	Tenant string   `placeholder:"NAME" help:"Tenant of an agent, or the only one that a worker works for. A new one gets an account."`
	Pool   []string `placeholder:"NAME" help:"A pool that belongs to the tenant of a worker: the worker takes jobs of no other. May be given several times."`
}

// Help returns the text that --help shows below the command's usage.
func (identitiesAddCmd) Help() string {
	return `The server takes it when it reads its files again: SIGHUP, to "toolfleet nats" and to nats-server. A worker with --tenant writes
records and events of that tenant only. With --pool too it takes jobs of that pool alone, and coordinators count what it announces for
that tenant alone, in the pools that their setting tenant_pools gives to it. Without --pool they send it every call of a tool
that it announces, so its tools should be that tenant's alone.`
}

func (c identitiesAddCmd) Run(a *command.App) error {
	made, err := identities.Add(c.Dir, identities.Identity{Kind: identities.Kind(c.Kind), Name: c.Name, Tenant: c.Tenant, Pools: c.Pool})
	if err != nil {
		return command.Usage(err)
	}
	if err := a.Table([][]string{folderHead, folderRow(c.Dir, made)}); err != nil {
		return err
	}
	if err := sayApprovers(a.Stdout, []identities.Identity{made}); err != nil {
		return err
	}
	if made.Kind == identities.HTTP {
		a.Say("Coordinators believe it which user asks once their setting http_keys has %s", made.Key)
	}
	if len(made.Pools) > 0 {
		owned := make([]string, len(made.Pools))
		for i, pool := range made.Pools {
			owned[i] = pool + ": " + made.Tenant
		}
		a.Say("Coordinators send it calls once their setting tenant_pools has {%s}", strings.Join(owned, ", "))
	}
	a.Say("The server takes it after SIGHUP.")
	return nil
}

type identitiesRenewCmd struct {
	identitiesFolder
	Name string `arg:"" help:"Name of the identity."`
}

// Help returns the text that --help shows below the command's usage.
func (identitiesRenewCmd) Help() string {
	return `Bring the new key to where it is used, then have the server read its files again: SIGHUP. It disconnects who has the old key, and
programs connect with the new one, without a restart. Only what an HTTP server signs needs its restart, and coordinators its key in http_keys;
decisions need the approver's key in the policy.`
}

func (c identitiesRenewCmd) Run(a *command.App) error {
	made, err := identities.Renew(c.Dir, c.Name)
	if err != nil {
		return command.Usage(err)
	}
	a.Say("%s has another key, whose public half is %s. SIGHUP has the server take it.", identities.KeyFile(c.Dir, made.Name), made.Key)
	return nil
}

type identitiesRmCmd struct {
	identitiesFolder
	Name string `arg:"" help:"Name of the identity."`
}

func (c identitiesRmCmd) Run(a *command.App) error {
	gone, err := identities.Remove(c.Dir, c.Name)
	if err != nil {
		return command.Usage(err)
	}
	a.Say("The %s %s is out of the server's files; SIGHUP disconnects it. Its folder is still there: delete it.", gone.Kind, gone.Name)
	return nil
}

type identitiesLsCmd struct {
	identitiesFolder
	command.OutputFlags
}

func (c identitiesLsCmd) Run(a *command.App) error {
	all, err := identities.List(c.Dir)
	if err != nil {
		return command.Usage(err)
	}
	if c.JSON() {
		return a.Print(map[string]any{"identities": all})
	}
	rows := [][]string{{"KIND", "NAME", "TENANT", "KEY"}}
	for _, i := range all {
		rows = append(rows, []string{string(i.Kind), i.Name, i.Tenant, i.Key})
	}
	return a.Table(rows)
}

type identitiesAccountsCmd struct {
	identitiesFolder
}

func (c identitiesAccountsCmd) Run(a *command.App) error {
	text, err := identities.Accounts(c.Dir)
	if err != nil {
		return command.Usage(err)
	}
	_, err = io.WriteString(a.Stdout, text)
	return err
}

type identitiesCertificateCmd struct {
	identitiesFolder
	Host []string `required:"" placeholder:"NAME" help:"Name or address at which clients reach the server. May be given several times."`
}

func (c identitiesCertificateCmd) Run(a *command.App) error {
	if err := identities.Certificate(c.Dir, c.Host); err != nil {
		return command.Usage(err)
	}
	a.Say("The server takes the certificate after SIGHUP. Connections that are there stay.")
	return nil
}
