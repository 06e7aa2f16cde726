// Package identities writes the identities of a fleet: a key for every part, the configuration
// of the NATS server that knows these keys, and TLS. Its templates are the files of
// deploy/nats.
//
//	FOLDER/
//	  nats/         for the NATS server: server.conf and what it includes, its certificate
//	  coordinator/  for coordinators: toolfleet.yaml, key.nkey, ca.crt
//	  worker/       for one worker; every other key has such a folder too
//	  ca/           the trial authority's key, which stays where it was made
//
// Files are never replaced, except by [Renew], [Add], [Remove] and [Certificate]. The server's
// files hold only the public halves of keys. The one secret among them is the key of the
// server's certificate.
//
// The server's files have one user per line, with kind and name in a comment behind it. People
// can thus read and edit the files, and [Add] and [Remove] still find their lines.
package identities

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	natsfiles "github.com/toolfleet/toolfleet/deploy/nats"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/messages"
)

// Kind says what an identity is for.
type Kind string

// The kinds of identities.
const (
	Coordinator Kind = "coordinator"
	Worker      Kind = "worker"
	HTTP        Kind = "http"
	Operator    Kind = "operator"
	Approver    Kind = "approver"
	Agent       Kind = "agent"
)

// Kinds lists all kinds.
var Kinds = []Kind{Coordinator, Worker, HTTP, Operator, Approver, Agent}

// Identity is a user of the NATS server: a program or a person.
type Identity struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Tenant is the tenant of an agent, or of a worker that works for one tenant only.
	Tenant string `json:"tenant,omitempty"`
	// Pools of a worker that works for one tenant: the only ones it takes jobs of. None: all.
	Pools []string `json:"pools,omitempty"`
	Key   string   `json:"key"` // the public half

	file string // the file that has the identity's line; set when it was read
}

// InboxPrefix returns the prefix of the subjects on which the identity receives answers.
func (i Identity) InboxPrefix() string { return "_INBOX." + string(i.Kind) }

// Options say what [New] writes. The zero value is a fleet on this machine, without agents.
type Options struct {
	Tenants   []string // tenants of agents; each tenant gets an agent with its name
	Workers   []string // names of workers; none: one worker
	Approvers []string // names of approvers
	// Hosts are the names and addresses at which clients reach the server. The settings use
	// the first one. None: localhost, 127.0.0.1 and ::1.
	Hosts []string
	// URL is the server's URL in the settings. "": the first host, port 4222.
	URL string
	// At is the folder of the server's files on the server's machine. "": the folder to which
	// New writes them.
	At       string
	TLS      TLS
	MaxStore string // limit of all streams on disk, such as 10GB; "": no limit
}

// nameForm matches the names of identities. A name is also the name of a folder, and stands in
// a comment of a configuration file.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$`)

// serverConf is the name of the configuration file of the NATS server.
const serverConf = "server.conf"

// ServerFile returns the path of the NATS server's configuration file in a folder that [New]
// has written.
func ServerFile(dir string) string { return filepath.Join(serverOf(dir).dir, serverConf) }

// New writes the files of a fleet into a folder, and returns the identities. If the folder has
// a file already, New changes nothing and returns an error.
func New(dir string, o Options) ([]Identity, error) {
	o.Hosts = slices.Clone(o.Hosts)
	if len(o.Hosts) == 0 {
		o.Hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	all := o.identities()
	if err := errors.Join(check(all), o.TLS.check()); err != nil {
		return nil, err
	}
	if err := free(dir); err != nil {
		return nil, err
	}
	s := serverOf(dir)
	if err := s.unpack(o.MaxStore); err != nil {
		return nil, err
	}
	at := cmp.Or(o.At, s.dir)
	conf, authority, err := o.TLS.write(dir, at, o.Hosts)
	if err != nil {
		return nil, err
	}
	url := cmp.Or(o.URL, o.TLS.scheme()+net.JoinHostPort(o.Hosts[0], "4222"))
	for n := range all {
		if all[n], err = s.add(all[n]); err != nil {
			return nil, err
		}
	}
	for _, i := range all {
		if err := writeFolder(dir, i, url, authority, all); err != nil {
			return nil, err
		}
	}
	// This file comes last: a folder without it shows that New has not finished.
	return all, write(ServerFile(dir), conf)
}

// identities returns the identities of a new fleet, without keys.
func (o Options) identities() []Identity {
	all := []Identity{{Kind: Coordinator, Name: "coordinator"}}
	workers := o.Workers
	if len(workers) == 0 {
		workers = []string{"worker"}
	}
	for _, name := range workers {
		all = append(all, Identity{Kind: Worker, Name: name})
	}
	all = append(all, Identity{Kind: HTTP, Name: "http"}, Identity{Kind: Operator, Name: "operator"})
	for _, tenant := range o.Tenants {
		all = append(all, Identity{Kind: Agent, Name: tenant, Tenant: tenant})
	}
	for _, name := range o.Approvers {
		all = append(all, Identity{Kind: Approver, Name: name})
	}
	return all
}

// check returns an error that joins what is wrong with the names of identities.
func check(all []Identity) error {
	var errs []error
	seen := map[string]bool{"nats": true, "ca": true}
	for _, i := range all {
		folded := strings.ToLower(i.Name)
		switch {
		case !slices.Contains(Kinds, i.Kind):
			errs = append(errs, fmt.Errorf("kind %.80q: want one of %v", i.Kind, Kinds))
		case !nameForm.MatchString(i.Name):
			errs = append(errs, fmt.Errorf("name %.80q: want 1 to 64 of A-Z a-z 0-9 _ . @ -, and no . @ or - at the beginning", i.Name))
		case seen[folded]:
			errs = append(errs, fmt.Errorf("two folders would be called %s: give the %s another name", folded, i.Kind))
		case i.Kind == Agent && i.Tenant == "":
			errs = append(errs, fmt.Errorf("the agent %s has no tenant: name it with --tenant", i.Name))
		case i.Kind != Agent && i.Kind != Worker && i.Tenant != "":
			errs = append(errs, fmt.Errorf("the %s %s has a tenant: only agents and workers have one", i.Kind, i.Name))
		case i.Tenant != "":
			errs = append(errs, checkTenant(i.Tenant))
		}
		errs = append(errs, checkPools(i))
		seen[folded] = true
	}
	return errors.Join(errs...)
}

// poolForm matches the names of pools.
var poolForm = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,32}$`)

// checkPools returns what is wrong with the pools of an identity.
func checkPools(i Identity) error {
	if len(i.Pools) > 0 && (i.Kind != Worker || i.Tenant == "") {
		return fmt.Errorf("the %s %s has a pool of its own, but no tenant that owns it: only workers with --tenant have --pool", i.Kind, i.Name)
	}
	for n, pool := range i.Pools {
		if !poolForm.MatchString(pool) {
			return fmt.Errorf("pool %.80q: want 1 to 32 of A-Z a-z 0-9 _ -", pool)
		}
		if slices.Contains(i.Pools[:n], pool) {
			return fmt.Errorf("pool %s is named twice: name it once with --pool", pool)
		}
	}
	return nil
}

// reserved lists words that the NATS server's configuration does not read as the name of an
// account.
var reserved = []string{"INCLUDE", "TRUE", "FALSE", "YES", "NO", "ON", "OFF"}

// checkTenant returns an error if a tenant cannot have this name. The name of a tenant becomes
// the name of an account.
func checkTenant(tenant string) error {
	switch upper := strings.ToUpper(tenant); {
	case !messages.IsToken(tenant) || tenant == "_" || strings.HasPrefix(tenant, "="):
		return fmt.Errorf("tenant %.80q: want 1 to 64 of A-Z a-z 0-9 _ -", tenant)
	case slices.Contains([]string{"SYS", "FLEET", "APPROVERS"}, upper) || strings.HasPrefix(upper, "WORKERS"):
		return fmt.Errorf("tenant %s: an account of the fleet has this name; choose another", tenant)
	case slices.Contains(reserved, upper) || strings.Trim(tenant[:1], "0123456789-") == "":
		return fmt.Errorf("tenant %s: the NATS server's configuration reads this as something else than a name; begin it with a letter, and choose another word than %s",
			tenant, strings.ToLower(strings.Join(reserved, ", ")))
	}
	return nil
}

// free returns an error if there is a file in a folder. Empty folders in it are allowed: a
// container may have them from its volumes.
func free(dir string) error {
	half := fileIsThere(filepath.Join(dir, "nats", "identities.conf")) && !fileIsThere(ServerFile(dir))
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && half {
			return fmt.Errorf("%s is half written, since an earlier `toolfleet identities new` did not end, and nothing uses its keys yet: empty the folder and run it again", dir)
		}
		if err == nil && !d.IsDir() {
			return fmt.Errorf("%s is there already, and nothing is replaced: name another folder with --dir, or make further keys with `toolfleet identities add`", name)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func fileIsThere(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// write writes a new file that only its owner may read. It also makes the folders above the
// file.
func write(file string, body []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	return errors.Join(err, f.Close())
}

// replace replaces the content of a file in one step.
func replace(file string, body []byte) error {
	next := file + ".new"
	if err := removeStale(next); err != nil {
		return err
	}
	if err := write(next, body); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// removeStale removes a temporary file that a killed program has left behind.
func removeStale(file string) error {
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unpack writes the templates without their users and tenants.
func (s server) unpack(maxStore string) error {
	return fs.WalkDir(natsfiles.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Dir(name) == "tenants" || name == serverConf {
			return err
		}
		body, err := fs.ReadFile(natsfiles.Files, name)
		if err != nil {
			return err
		}
		text := string(body)
		switch {
		case path.Dir(name) == "users":
			text = userLine.ReplaceAllString(text, "")
		case name == "identities.conf":
			text = strings.Replace(text, tenantInclude("acme"), "", 1)
			if maxStore != "" {
				text = strings.Replace(text, "jetstream: { ", "jetstream: { max_file: "+maxStore+", ", 1)
			}
		}
		return write(filepath.Join(s.dir, filepath.FromSlash(name)), []byte(text))
	})
}

// newKey makes a key in a new file and returns its public half.
func newKey(file string) (string, error) {
	key, err := approval.NewKey()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = key.Write(file)
	}
	return key.Public(), err
}
