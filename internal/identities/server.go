package identities

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	natsfiles "github.com/toolfleet/toolfleet/deploy/nats"
)

// server is the folder with the NATS server's files.
type server struct{ dir string }

// serverOf returns the folder with the NATS server's files, in a folder that [New] has
// written.
func serverOf(dir string) server { return server{dir: filepath.Join(dir, "nats")} }

// userLine matches the line of a user: its key, and behind it the kind and the name.
var userLine = regexp.MustCompile(`(?m)^ *\{ nkey: (\S+), .*\} # (\w+) (\S+)\n`)

// tenantInclude is the line of identities.conf that includes the file of a tenant.
func tenantInclude(tenant string) string { return "  include \"tenants/" + tenant + ".conf\"\n" }

// KeyFile returns the file with the secret half of an identity's key, in a folder that [New]
// has written.
func KeyFile(dir, name string) string { return filepath.Join(dir, name, "key.nkey") }

// file returns the file with the users of an identity's kind.
func (s server) file(i Identity) string {
	switch {
	case i.Kind == Agent:
		return filepath.Join(s.dir, "tenants", i.Tenant+".conf")
	case i.Kind == Worker && i.Tenant != "":
		return filepath.Join(s.dir, "workers", i.Tenant+".conf")
	case i.Kind == Worker:
		return filepath.Join(s.dir, "users", "workers.conf")
	case i.Kind == Approver:
		return filepath.Join(s.dir, "users", "approvers.conf")
	}
	return filepath.Join(s.dir, "users", "fleet.conf")
}

// add makes a key, writes it into the identity's folder, and adds its user to the server's
// files.
func (s server) add(i Identity) (Identity, error) {
	file := s.file(i)
	if i.Kind == Worker && i.Tenant != "" && fileIsThere(file) {
		var err error
		if i.Pools, err = s.samePools(i); err != nil { // before anything is written
			return i, err
		}
	}
	if err := s.account(i); err != nil {
		return i, err
	}
	permissions := string(i.Kind)
	if len(i.Pools) > 0 {
		permissions = heldPermissions(i.Tenant)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return i, err
	}
	end := strings.LastIndex(string(text), "]")
	if end < 0 {
		return i, fmt.Errorf("%s has no list of users that ends with ]", file)
	}
	end = strings.LastIndex(string(text[:end]), "\n") + 1
	if i.Key, err = newKey(KeyFile(filepath.Dir(s.dir), i.Name)); err != nil {
		return i, err
	}
	line := fmt.Sprintf("  { nkey: %s, permissions: { include \"../permissions/%s.conf\" } } # %s %s\n", i.Key, permissions, i.Kind, i.Name)
	return i, replace(file, slices.Concat(text[:end], []byte(line), text[end:]))
}

// account makes the account of a tenant's agents, or of a tenant's workers, unless
// identities.conf includes it already. If the account's file exists already, because an
// earlier command was killed, account only adds the line that includes it.
func (s server) account(i Identity) error {
	if i.Tenant == "" {
		return nil
	}
	identities := filepath.Join(s.dir, "identities.conf")
	body, err := os.ReadFile(identities)
	if err != nil {
		return err
	}
	text := string(body)
	line := tenantInclude(i.Tenant)
	if i.Kind == Worker {
		line = "  include \"workers/" + i.Tenant + ".conf\"\n"
	}
	if strings.Contains(text, strings.TrimSpace(line)) {
		return nil
	}
	if i.Kind == Agent {
		return s.include(text, line, s.file(i), func() (string, error) { return agentsOf(i.Tenant) })
	}
	account := "WORKERS_" + i.Tenant
	if len(i.Pools) > 0 {
		if text, err = s.held(i, account, text); err != nil {
			return err
		}
	}
	for _, list := range []string{"WORKER_ACCOUNTS: [", "SETTINGS_FOR: ["} {
		if !strings.Contains(text, list) {
			return fmt.Errorf("%s has no line %s...]: it names the accounts of workers", identities, list)
		}
		text = strings.Replace(text, list, list+account+", ", 1)
	}
	return s.include(text, line, s.file(i), func() (string, error) {
		block, err := workersOf(i.Tenant, account, text)
		return hold(block, i.Tenant, i.Pools), err
	})
}

// include writes the file of an account, if it does not exist. It also adds the line that
// includes it to identities.conf, in front of the last brace, which ends the accounts.
func (s server) include(text, line, file string, content func() (string, error)) error {
	end := strings.LastIndex(text, "}")
	if end < 0 {
		return fmt.Errorf("%s does not end with the brace of its accounts", filepath.Join(s.dir, "identities.conf"))
	}
	body, err := content()
	if err != nil {
		return err
	}
	if !fileIsThere(file) {
		if err := replace(file, []byte(body)); err != nil {
			return err
		}
	}
	return replace(filepath.Join(s.dir, "identities.conf"), []byte(text[:end]+line+text[end:]))
}

// agentsOf returns the configuration of the account of a tenant's agents.
func agentsOf(tenant string) (string, error) {
	body, err := fs.ReadFile(natsfiles.Files, "tenants/acme.conf")
	text := userLine.ReplaceAllString(string(body), "")
	return strings.ReplaceAll(text, "acme", tenant), err
}

var (
	workersBlock = regexp.MustCompile(`(?ms)^  WORKERS \{\n.*?^  \}\n`)
	allTenants   = regexp.MustCompile(`"toolfleet\.(call|result|hand|stop)\.>"`)
	eachTenant   = regexp.MustCompile(`"toolfleet\.(audit|event)\.\*`)
	usersFile    = regexp.MustCompile(`include "users/workers.conf"`)
)

// workersOf returns the configuration of the account of a tenant's workers. It is the account
// of all workers, limited to the records, events and stops of the tenant.
func workersOf(tenant, account, text string) (string, error) {
	block := workersBlock.FindString(text)
	if block == "" {
		return "", fmt.Errorf("identities.conf has no account WORKERS { ... }")
	}
	block = strings.Replace(block, "WORKERS {", account+" {", 1)
	block = allTenants.ReplaceAllString(block, `"toolfleet.$1.`+tenant+`.>"`)
	block = eachTenant.ReplaceAllString(block, `"toolfleet.$1.`+tenant)
	block = usersFile.ReplaceAllString(block, "users: [\n    ]")
	return "# Workers of the tenant " + tenant + ": records, events and stops of its calls only.\n\n" + block, nil
}

// list returns the identities that the server's files have.
func (s server) list() (all []Identity, err error) {
	for _, pattern := range []string{"users/*.conf", "workers/*.conf", "tenants/*.conf"} {
		files, err := filepath.Glob(filepath.Join(s.dir, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			for _, m := range userLine.FindAllStringSubmatch(string(text), -1) {
				i := Identity{Kind: Kind(m[2]), Name: m[3], Key: m[1], file: file}
				if filepath.Base(filepath.Dir(file)) != "users" {
					i.Tenant = strings.TrimSuffix(filepath.Base(file), ".conf")
					i.Pools = poolsIn(string(text))
				}
				all = append(all, i)
			}
		}
	}
	return all, nil
}

// remove removes the line of an identity from the server's files.
func (s server) remove(i Identity) error {
	return s.edit(i, func(string) string { return "" })
}

// rekey replaces the key in the line of an identity.
func (s server) rekey(i Identity, key string) error {
	return s.edit(i, func(line string) string { return strings.Replace(line, i.Key, key, 1) })
}

// edit changes the line of an identity, in the file in which [server.list] has found the
// identity.
func (s server) edit(i Identity, change func(line string) string) error {
	text, err := os.ReadFile(i.file)
	if err != nil {
		return err
	}
	changed := userLine.ReplaceAllStringFunc(string(text), func(line string) string {
		if strings.HasSuffix(line, "# "+string(i.Kind)+" "+i.Name+"\n") {
			return change(line)
		}
		return line
	})
	if changed == string(text) {
		return fmt.Errorf("%s has no line of the %s %s any more: run the command again", i.file, i.Kind, i.Name)
	}
	return replace(i.file, []byte(changed))
}
