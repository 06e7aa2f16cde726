package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"
)

func request(host, authorization string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.Host = host
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return r
}

// A host name counts as this machine only if it is a local name. A public name that leads to
// this machine does not count.
func TestHereIsForLocalNames(t *testing.T) {
	here := Here{As: Principal{Tenant: "_"}}
	for host, want := range map[string]bool{
		"localhost": true, "localhost:8090": true, "LOCALHOST.": true, "127.0.0.1:8090": true, "127.8.8.8": true, "[::1]:8090": true, "a.localhost": true,
		"": false, "evil.example": false, "evil.example:8090": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false,
		"10.0.0.1": false, "0.0.0.0:8090": false, "[::]:8090": false, "notlocalhost": false,
	} {
		_, err := here.Who(request(host, ""))
		var denied *Denied
		if (err == nil) != want || err != nil && (!errors.As(err, &denied) || !denied.Foreign) {
			t.Errorf("host %q: got %v", host, err)
		}
	}
}

func TestTokensOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("tokens:\n"+strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	alice, aliceLine := NewToken(Principal{Tenant: "acme", User: "alice"})
	bob, bobLine := NewToken(Principal{Tenant: "acme", User: "bob"})
	old, oldLine := NewToken(Principal{Tenant: "acme", User: "old"})
	write(aliceLine, strings.TrimSuffix(oldLine, "}")+", expires: 2001-01-01T00:00:00Z}", `  - {hash: "`+hashOf("plain")+`"}`)
	tokens, err := ReadTokens(file, "_", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	control := Bearer{Tokens: tokens}
	check := func(authorization string, want Principal, denied string) {
		t.Helper()
		got, err := control.Who(request("any.example", authorization))
		if got != want || (err == nil) != (denied == "") || err != nil && !strings.Contains(err.Error(), denied) {
			t.Errorf("%q: got %+v, %v; want %+v, %q", authorization, got, err, want, denied)
		}
	}
	check("Bearer "+alice, Principal{Tenant: "acme", User: "alice"}, "")
	check("bearer   "+alice, Principal{Tenant: "acme", User: "alice"}, "")
	check("Bearer plain", Principal{Tenant: "_"}, "")
	check("Bearer "+old, Principal{}, "expired")
	check("Bearer "+bob, Principal{}, "does not know")
	check("Bearer "+hashOf(alice), Principal{}, "does not know")
	check("Basic "+alice, Principal{}, "asks for a token")
	check("", Principal{}, "asks for a token")

	write(bobLine) // alice is removed
	tokens.looked = time.Time{}
	check("Bearer "+alice, Principal{}, "does not know")
	check("Bearer "+bob, Principal{Tenant: "acme", User: "bob"}, "")
	write("  - {hash: nonsense}") // a mistake in the file locks nobody out
	tokens.looked = time.Time{}
	check("Bearer "+bob, Principal{Tenant: "acme", User: "bob"}, "")
}

func TestMistakesInATokensFile(t *testing.T) {
	good := hashOf("x")
	for text, want := range map[string]string{
		"":                            "f: want a list of tokens: `toolfleet http-token` prints an entry",
		"tokens: {}":                  "f:1:1: want a list of tokens",
		"token: []":                   "there is no key \"token\"",
		"tokens: [{user: a}]":         "f:1:10: hash is missing",
		"tokens: [{hash: tf_SECRET}]": "f:1:17: hash is not sha256: and 64 hex digits",
		"tokens: [{hash: '" + good + "', tenant: a.b}]":            "tenant \"a.b\" is not",
		"tokens: [{hash: '" + good + "', tenant: '*'}]":            "tenant \"*\" is not",
		"tokens: [{hash: '" + good + "', expires: soon}]":          "cannot parse \"soon\"",
		"tokens: [{hash: '" + good + "', role: admin}]":            "there is no key \"role\"",
		"tokens: [{hash: '" + good + "'}, {hash: '" + good + "'}]": "twice",
		"tokens: [a": "f:1:",
	} {
		_, err := parseTokens("f", []byte(text), "_")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func FuzzParseTokens(f *testing.F) {
	f.Add("tokens: [{hash: a, tenant: b}]")
	f.Add("tokens:\n  - hash\n")
	f.Fuzz(func(t *testing.T, text string) {
		owners, err := parseTokens("f", []byte(text), "_")
		if err != nil {
			return
		}
		for hash := range owners {
			if !hashText.MatchString(hash) {
				t.Errorf("took the hash %q", hash)
			}
		}
	})
}

// A token is accepted if its issuer has signed it, it is for this server, and it has not
// expired.
func TestJWT(t *testing.T) {
	key, other := newKey(t), newKey(t)
	file := filepath.Join(t.TempDir(), "keys.json")
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, set, 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := NewJWT(t.Context(), JWTConfig{Issuer: "https://id.example", Audience: "toolfleet", Keys: file, TenantClaim: "org", Tenant: "_"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	fine := jwt.Claims{Issuer: "https://id.example", Subject: "alice", Audience: jwt.Audience{"toolfleet"}, Expiry: jwt.NewNumericDate(now.Add(time.Hour))}
	with := func(change func(*jwt.Claims)) jwt.Claims { c := fine; change(&c); return c }
	for name, row := range map[string]struct {
		token  string
		denied string
	}{
		"fine":             {sign(t, key, fine, "acme"), ""},
		"expired":          {sign(t, key, with(func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(now.Add(-time.Minute)) }), "acme"), "expired"},
		"without an end":   {sign(t, key, with(func(c *jwt.Claims) { c.Expiry = nil }), "acme"), "expired"},
		"not yet":          {sign(t, key, with(func(c *jwt.Claims) { c.NotBefore = jwt.NewNumericDate(now.Add(time.Hour)) }), "acme"), "not valid"},
		"another issuer":   {sign(t, key, with(func(c *jwt.Claims) { c.Issuer = "https://evil.example" }), "acme"), "not valid"},
		"another audience": {sign(t, key, with(func(c *jwt.Claims) { c.Audience = jwt.Audience{"mail"} }), "acme"), "not valid"},
		"another key":      {sign(t, other, fine, "acme"), "not valid"},
		"no tenant":        {sign(t, key, fine, ""), "names no tenant"},
		"a wild tenant":    {sign(t, key, fine, "*"), "names no tenant"},
		"unsigned":         {"eyJhbGciOiJub25lIn0.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUifQ.", "not valid"},
		"nonsense":         {"a.b.c", "not valid"},
	} {
		p, err := Bearer{JWT: j}.Who(request("any.example", "Bearer "+row.token))
		if row.denied == "" {
			want := Principal{Tenant: "acme", User: "alice", Expires: fine.Expiry.Time()}
			if diff := cmp.Diff(want, p); err != nil || diff != "" {
				t.Errorf("%s: %v %s", name, err, diff)
			}
			continue
		}
		var denied *Denied
		if !errors.As(err, &denied) || !strings.Contains(denied.Message, row.denied) {
			t.Errorf("%s: got %v, want %q", name, err, row.denied)
		}
	}
	for _, cfg := range []JWTConfig{{}, {Issuer: "i", Audience: "a", Keys: "http://id.example/keys"}, {Issuer: "i", Audience: "a", Keys: file + "x"}} {
		if _, err := NewJWT(t.Context(), cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// roundTrip is an http.RoundTripper made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The keys of an issuer cannot be fetched: a token counts neither as valid nor as denied. A
// check does not wait for an issuer that hangs.
func TestTheKeysOfAnIssuerCannotBeFetched(t *testing.T) {
	key := newKey(t)
	token := sign(t, key, jwt.Claims{
		Issuer: "https://id.example", Subject: "alice", Audience: jwt.Audience{"toolfleet"}, Expiry: jwt.NewNumericDate(time.Now().AddDate(100, 0, 0)),
	}, "")
	for name, fetch := range map[string]roundTrip{
		"refused": func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") },
		"down": func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
		},
		"silent": func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j, err := NewJWT(t.Context(), JWTConfig{Issuer: "https://id.example", Audience: "toolfleet", Keys: "https://id.example/keys", Tenant: "_", Fetch: fetch})
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				_, err = Bearer{JWT: j}.Who(request("any.example", "Bearer "+token))
				var unchecked *Unchecked
				if took := time.Since(begun); !errors.As(err, &unchecked) || took > fetchIn {
					t.Errorf("got %v after %v", err, took)
				}
			})
		})
	}
}

// A key for encryption cannot sign tokens.
func TestKeysForEncryptionDoNotCount(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.json")
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: newKey(t).Public(), KeyID: "1", Use: "enc"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, set, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readKeys(file); err == nil || !strings.Contains(err.Error(), "no public key for signatures") {
		t.Errorf("got %v", err)
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t *testing.T, key *ecdsa.PrivateKey, claims jwt.Claims, tenant string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	if err != nil {
		t.Fatal(err)
	}
	builder := jwt.Signed(signer).Claims(claims)
	if tenant != "" {
		builder = builder.Claims(map[string]any{"org": tenant})
	}
	token, err := builder.Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
