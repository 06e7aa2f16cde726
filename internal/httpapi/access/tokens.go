package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/strictyaml"
	"github.com/toolfleet/toolfleet/messages"
)

// tokenPrefix begins every token that [NewToken] makes. Scanners for secrets find tokens by
// it.
const tokenPrefix = "tf_"

// NewToken returns a new token and its line for the tokens file. The line has only a hash, so
// a reader of the file cannot use the token.
func NewToken(p Principal) (token, line string) {
	token = tokenPrefix + rand.Text() + rand.Text()
	line = fmt.Sprintf("  - {hash: %q, tenant: %q, user: %q}", hashOf(token), p.Tenant, p.User)
	return token, line
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Tokens has the tokens of a file. It reads the file again when the file changes. Safe for
// concurrent use.
type Tokens struct {
	file     string
	fallback string // the tenant of a token without a tenant
	log      *slog.Logger

	mu     sync.Mutex
	looked time.Time            // when the file was last looked at; guarded by mu
	read   os.FileInfo          // the file as it was last read; guarded by mu
	owners map[string]Principal // by hash; guarded by mu
}

// lookEvery is how long it may take until a change of the file is noticed.
const lookEvery = time.Second

// ReadTokens reads a tokens file. A token without a tenant is of the tenant fallback.
func ReadTokens(file, fallback string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{file: file, fallback: fallback, log: log}
	return t, t.reload(time.Now())
}

// Owner returns the owner of a token.
func (t *Tokens) Owner(token string) (Principal, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.looked) > lookEvery {
		if err := t.reload(now); err != nil {
			t.log.Error("the tokens stay as they were", "err", err)
		}
	}
	p, known := t.owners[hashOf(token)]
	return p, known
}

// reload reads the file if it has changed.
func (t *Tokens) reload(now time.Time) error {
	t.looked = now
	info, err := os.Stat(t.file)
	if err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	if t.read != nil && os.SameFile(info, t.read) && info.ModTime().Equal(t.read.ModTime()) && info.Size() == t.read.Size() {
		return nil
	}
	body, err := os.ReadFile(t.file)
	if err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	owners, err := parseTokens(t.file, body, t.fallback)
	if err == nil {
		t.read, t.owners = info, owners
	}
	return err
}

var hashText = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// parseTokens reads the text of a tokens file. The error joins all mistakes, each with its
// place in the file.
func parseTokens(name string, body []byte, fallback string) (map[string]Principal, error) {
	f := strictyaml.Parse(name, body, 0)
	owners := map[string]Principal{}
	entries, _, _ := f.Root.Find("/tokens")
	list, ok := entries.Value.([]strictyaml.Node)
	if len(f.Errors) == 0 && !ok {
		f.Add(f.Root.Position, "want a list of tokens: `toolfleet http-token` prints an entry")
	}
	for _, top := range membersOf(f.Root) {
		if top.Key != "tokens" {
			f.Add(top.KeyAt, "there is no key %q; want tokens", strictyaml.Clip(top.Key))
		}
	}
	for _, entry := range list {
		hash, owner := readToken(f, entry, fallback)
		if _, twice := owners[hash]; twice {
			f.Add(entry.Position, "this hash is in the file twice")
		}
		owners[hash] = owner
	}
	return owners, f.Err()
}

// readToken reads one entry, and adds the mistakes in it to the errors of the file.
func readToken(f *strictyaml.File, entry strictyaml.Node, fallback string) (hash string, p Principal) {
	p.Tenant = fallback
	for _, m := range membersOf(entry) {
		text, err := m.Text, error(nil)
		switch m.Key {
		case "hash":
			if hash = text; !hashText.MatchString(text) {
				err = fmt.Errorf("hash is not sha256: and 64 hex digits; the token itself does not belong here")
			}
		case "tenant":
			if p.Tenant = text; !messages.IsToken(text) {
				err = fmt.Errorf("tenant %.80q is not 1 to 64 of [A-Za-z0-9_-]", text)
			}
		case "user":
			p.User = text
		case "expires":
			p.Expires, err = time.Parse(time.RFC3339, text)
		default:
			err = fmt.Errorf("there is no key %q; want hash, tenant, user or expires", strictyaml.Clip(m.Key))
		}
		if err != nil {
			f.Add(m.Position, "%v", err)
		}
	}
	if hash == "" {
		f.Add(entry.Position, "hash is missing")
	}
	return hash, p
}

func membersOf(n strictyaml.Node) []strictyaml.Member {
	members, _ := n.Value.([]strictyaml.Member)
	return members
}

// isOurs reports whether a token can be of a tokens file. If not, it can be a JWT.
func isOurs(token string) bool {
	return strings.HasPrefix(token, tokenPrefix) || !slices.Contains([]byte(token), '.')
}
