package principal

import (
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/messages"
)

func newKey(t testing.TB) (key *Signer, public string) {
	t.Helper()
	key, err := NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	return key, key.Key()
}

func TestKeysOfFiles(t *testing.T) {
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{string(seed) + "\n", "-----BEGIN USER NKEY SEED-----\n" + string(seed) + "\n------END USER NKEY SEED------\n"} {
		if s, err := ParseSigner([]byte(file)); err != nil || s.Key() != public {
			t.Errorf("%.20q: %v", file, err)
		}
	}
	if _, err := ParseSigner([]byte("nothing")); err == nil {
		t.Error("a file without a key has one")
	}
	if CheckKey(public) != nil || CheckKey(string(seed)) == nil || CheckKey("") == nil {
		t.Error("keys are not told apart")
	}
}

func TestStatements(t *testing.T) {
	key, public := newKey(t)
	stranger, _ := newKey(t)
	sign := func(key *Signer, digest string, tenant messages.TenantID, user string) string {
		header, err := key.Sign(digest, messages.Principal{Tenant: tenant, User: user})
		if err != nil {
			t.Fatal(err)
		}
		return header
	}
	good := sign(key, "d1", "acme", "bob")
	body, sig, _ := strings.Cut(good, ".")
	_, sigOfAnother, _ := strings.Cut(sign(key, "d1", "acme", "eve"), ".")
	for _, tt := range []struct {
		name, header, digest string
		tenant               messages.TenantID
		want, err            string
	}{
		{"a user", good, "d1", "acme", "bob", ""},
		{"nobody says it", "", "d1", "acme", "", ""},
		{"no user", sign(key, "d1", "acme", ""), "d1", "acme", "", ""},
		{"another batch", good, "d2", "acme", "", "another batch"},
		{"another tenant", good, "d1", "globex", "", "another batch"},
		{"a stranger", sign(stranger, "d1", "acme", "bob"), "d1", "acme", "", "http_keys"},
		{"the signature of another user", body + "." + sigOfAnother, "d1", "acme", "", "signature"},
		{"no signature", body + ".", "d1", "acme", "", "signature"},
		{"no statement", "." + sig, "d1", "acme", "", "cannot be read"},
		{"no base64", "!" + good, "d1", "acme", "", "cannot be read"},
		{"too long", good + strings.Repeat("A", maxHeader), "d1", "acme", "", "cannot be read"},
		{"an escape sequence", sign(key, "d1", "acme", "bob\x1b[31m"), "d1", "acme", "", "no user"},
	} {
		user, err := User(tt.header, tt.digest, tt.tenant, []string{public})
		if user != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got %q, %v; want %q, %q", tt.name, user, err, tt.want, tt.err)
		}
	}
	if _, err := key.Sign("d1", messages.Principal{Tenant: "acme", User: strings.Repeat("x", MaxUser+1)}); err == nil {
		t.Error("a name that is too long is signed")
	}
}

func FuzzUser(f *testing.F) {
	key, public := newKey(f)
	good, err := key.Sign("d", messages.Principal{Tenant: "acme", User: "bob"})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"", ".", good, good[1:], strings.Replace(good, ".", "", 1)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		if user, err := User(header, "d", "acme", []string{public}); user != "" && (err != nil || header != good) {
			// In base64, the same bytes have only one form, apart from unused bits of the last
			// character.
			if user != "bob" {
				t.Errorf("%q names %q, %v", header, user, err)
			}
		}
	})
}
