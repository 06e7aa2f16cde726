package messages_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

func TestToken(t *testing.T) {
	for _, tt := range []struct{ id, want string }{
		{"conversation-1", "conversation-1"},
		{"A_b-9", "A_b-9"},
		{strings.Repeat("x", 64), strings.Repeat("x", 64)},
		{strings.Repeat("x", 65), "=" + "nOzNXFy6AyMAZRX9eqC94t4FMAg21dGZUp5ApapjTEs"},
		{"", "=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"},
	} {
		if got := messages.Token(messages.SessionID(tt.id)); len(got) != len(tt.want) || (got[0] != '=' && got != tt.want) {
			t.Errorf("Token(%.80q) = %q, want %q", tt.id, got, tt.want)
		}
	}
	for _, id := range []string{"a.b", "a.>", "*", ">", "with space", "emoji 🙂", "tab\t", "\x00", "=plain", "ümlaut", strings.Repeat("k", 4096), "a\r\nb"} {
		got := messages.Token(messages.SessionID(id))
		if !messages.IsToken(got) || got[0] != '=' || len(got) != 44 {
			t.Errorf("Token(%.40q) = %q, want = and 43 characters", id, got)
		}
	}
}

// Two different ids, made of any bytes, never share a token.
func FuzzToken(f *testing.F) {
	f.Add("a", "b")
	f.Add("a.b", "a.>")
	f.Add("=x", "x")
	f.Add(messages.Token(messages.BatchID("a.b")), "a.b")
	f.Fuzz(func(t *testing.T, a, b string) {
		ta, tb := messages.Token(messages.BatchID(a)), messages.Token(messages.BatchID(b))
		if (a == b) != (ta == tb) {
			t.Errorf("ids %q and %q have tokens %q and %q", a, b, ta, tb)
		}
		for _, tok := range []string{ta, tb} {
			if !messages.IsToken(tok) || strings.ContainsAny(tok, ".*> \t\r\n\x00") {
				t.Errorf("%q is no safe token", tok)
			}
		}
	})
}

func TestTokensNeverCollide(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[string]string{}
	for range 100_000 {
		id := make([]byte, 1+rng.IntN(4))
		for i := range id {
			id[i] = byte(rng.IntN(256))
		}
		token := messages.Token(messages.SessionID(id))
		if other, taken := seen[token]; taken && other != string(id) {
			t.Fatalf("%q and %q share token %q", other, id, token)
		}
		seen[token] = string(id)
	}
}

func TestIsDigest(t *testing.T) {
	good := messages.Digest(nil)
	if !messages.IsDigest(good) {
		t.Errorf("%q is a digest", good)
	}
	for _, bad := range []string{"", good[1:], good + "0", good + "\n", strings.ToUpper(good), "../" + good[3:], strings.Repeat("é", 32)} {
		if messages.IsDigest(bad) {
			t.Errorf("%q is no digest", bad)
		}
	}
}
