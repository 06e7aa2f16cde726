package identities

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// settingsFile is the name of the settings file in the folder of an identity.
const settingsFile = "toolfleet.yaml"

// writeFolder writes the files that an identity needs beside its key: the settings and, if
// there is one, the certificate of the authority that signed the server's certificate.
func writeFolder(dir string, i Identity, url string, authority []byte, all []Identity) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# Settings with the identity %s (%s), from `toolfleet identities`. Paths are relative to this file.\n", i.Name, i.Kind)
	fmt.Fprintf(&text, "nats:\n  url: %s\n  nkey: key.nkey\n  inbox_prefix: %s\n", url, i.InboxPrefix())
	if authority != nil {
		text.WriteString("  tls_ca: ca.crt\n")
		if err := write(filepath.Join(dir, i.Name, "ca.crt"), authority); err != nil {
			return err
		}
	}
	switch i.Kind {
	case Coordinator:
		fmt.Fprintf(&text, "# HTTP servers: who says which user asks.\nhttp_keys: [%s]\n", strings.Join(keysOf(HTTP, all), ", "))
	case Approver:
		fmt.Fprintf(&text, "approver: {key: key.nkey, name: %s}\n", i.Name)
	case Worker:
		if len(i.Pools) > 0 {
			fmt.Fprintf(&text, "# The only tenant that it serves, and the pool of its tools that name none.\nworker_tenant: %s\nworker_pool: %s\n", i.Tenant, i.Pools[0])
		}
	case HTTP, Operator, Agent:
	}
	return write(filepath.Join(dir, i.Name, settingsFile), []byte(text.String()))
}

// keysOf returns the public keys of the identities of a kind.
func keysOf(kind Kind, all []Identity) (keys []string) {
	for _, i := range all {
		if i.Kind == kind {
			keys = append(keys, i.Key)
		}
	}
	return keys
}

var urlLine = regexp.MustCompile(`(?m)^  url: (.+)$`)

// urlOf returns the server's URL, from the settings of an identity that exists already.
func urlOf(dir string, all []Identity) (string, error) {
	for _, i := range all {
		text, err := os.ReadFile(filepath.Join(dir, i.Name, settingsFile))
		if err != nil {
			continue
		}
		if m := urlLine.FindStringSubmatch(string(text)); m != nil {
			return m[1], nil
		}
	}
	return "", fmt.Errorf("no %s in %s names the server: keep the folder of one identity there", settingsFile, dir)
}
