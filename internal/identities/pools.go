package identities

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A pool may belong to one tenant. The account of the tenant's workers then takes jobs of that pool
// alone, and announces workers and tools below the tenant's name, so that coordinators know whose
// they are. Everything else is as for other workers of one tenant: see [workersOf].

// poolsLine names the pools in the file of an account.
var poolsLine = regexp.MustCompile(`(?m)^# Pools: (.+)$`)

// poolsIn returns the pools of the account in a file, or none if it takes jobs of all.
func poolsIn(text string) []string {
	if m := poolsLine.FindStringSubmatch(text); m != nil {
		return strings.Fields(m[1])
	}
	return nil
}

// samePools returns the pools of the account that a worker goes into. Workers of a tenant share
// them.
func (s server) samePools(i Identity) ([]string, error) {
	text, err := os.ReadFile(s.file(i))
	if err != nil {
		return nil, err
	}
	pools := poolsIn(string(text))
	if len(i.Pools) == 0 || slices.Equal(pools, i.Pools) {
		return pools, nil
	}
	which := "all pools"
	if len(pools) > 0 {
		which = strings.Join(pools, " and ") + " alone"
	}
	return nil, fmt.Errorf("the workers of %s take jobs of %s, as the first of them was made: leave out --pool, or change %s and the permissions that it includes by hand", i.Tenant, which, s.file(i))
}

var (
	heldQueue    = regexp.MustCompile(`(?m)^.*"(?:toolfleet\.queue|\$JS\.API\.CONSUMER\.(?:INFO|MSG\.NEXT)\.TOOLFLEET_JOBS)\.\*".*\n|^.*"\$JS\.ACK\.TOOLFLEET_JOBS\.>".*\n`)
	heldSubject  = regexp.MustCompile(`"(toolfleet\.queue|\$JS\.API\.CONSUMER\.(?:INFO|MSG\.NEXT)\.TOOLFLEET_JOBS)\.\*"`)
	heldAck      = regexp.MustCompile(`"\$JS\.ACK\.TOOLFLEET_JOBS\.>"`)
	heldAnnounce = regexp.MustCompile(`"(\$KV\.TOOLFLEET_(?:tools|workers))\.\*"`)
)

// hold holds an account of a tenant's workers to pools; without pools it changes nothing.
func hold(block, tenant string, pools []string) string {
	if len(pools) == 0 {
		return block
	}
	block = heldQueue.ReplaceAllStringFunc(block, func(line string) string {
		lines := ""
		for _, pool := range pools {
			lines += heldAck.ReplaceAllString(heldSubject.ReplaceAllString(line, `"${1}.`+pool+`"`), `"$$JS.ACK.TOOLFLEET_JOBS.`+pool+`.>"`)
		}
		return lines
	})
	block = heldAnnounce.ReplaceAllString(block, `"${1}.`+tenant+`.*"`)
	return "# Pools: " + strings.Join(pools, " ") + "\n" + block
}

// heldPermissions is the name of the permissions of a tenant's workers, without its ending.
func heldPermissions(tenant string) string { return "worker-" + tenant }

// held writes the permissions of a tenant's workers, and adds to a text of identities.conf what
// FLEET exports to their account alone.
func (s server) held(i Identity, account, text string) (string, error) {
	file := func(name string) string { return filepath.Join(s.dir, "permissions", name+".conf") }
	body, err := os.ReadFile(file(string(Worker)))
	if err != nil {
		return "", err
	}
	permissions := "# A worker of the tenant " + i.Tenant + ", in a pool of its own. Otherwise it is like any worker:\n#\n" + hold(string(body), i.Tenant, i.Pools)
	if err := replace(file(heldPermissions(i.Tenant)), []byte(permissions)); err != nil {
		return "", err
	}
	for _, bucket := range []string{"tools", "workers"} {
		all := `      { service: "$KV.TOOLFLEET_` + bucket + `.*", accounts: $WORKER_ACCOUNTS }` + "\n"
		own := `      { service: "$KV.TOOLFLEET_` + bucket + "." + i.Tenant + `.*", accounts: [` + account + `] }` + "\n"
		if !strings.Contains(text, all) {
			return "", fmt.Errorf("%s does not export $KV.TOOLFLEET_%s.* to $WORKER_ACCOUNTS in a line of its own", filepath.Join(s.dir, "identities.conf"), bucket)
		}
		if !strings.Contains(text, own) {
			text = strings.Replace(text, all, all+own, 1)
		}
	}
	return text, nil
}
