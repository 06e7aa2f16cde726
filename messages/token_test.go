package messages_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

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

func TestSubjectsThereAndBack(t *testing.T) {
	var n messages.Names
	key := messages.KeyOf("_", "a.>", "turn 7")
	verb, got, err := n.Batch(n.Of(messages.VerbBatch, key))
	if err != nil || verb != messages.VerbBatch || got != key {
		t.Errorf("batch subject read back: %v %v, err %v; want %v", verb, got, err, key)
	}
	verb, call, err := n.Call(n.OfCall(messages.VerbResult, key.Call(511)))
	if err != nil || verb != messages.VerbResult || call != key.Call(511) {
		t.Errorf("call subject read back: %v %v, err %v; want %v", verb, call, err, key.Call(511))
	}
}

func TestHostileSubjectsAreRefused(t *testing.T) {
	var n messages.Names
	for _, subject := range []string{
		"toolfleet.batch._.*.b", "toolfleet.batch._.>.b", "toolfleet.batch._.s", "toolfleet.batch._.s.b.c",
		"toolfleet.batch._..b", "other.batch._.s.b", "toolfleet.batch._.s.=short", "", ".", "toolfleet.batch._.s.b\x00",
	} {
		if _, key, err := n.Batch(subject); err == nil {
			t.Errorf("subject %q was read as %v", subject, key)
		}
	}
	for _, subject := range []string{"toolfleet.call._.s.b.-1", "toolfleet.call._.s.b.01", "toolfleet.call._.s.b.x", "toolfleet.call._.s.b", "x"} {
		if _, key, err := n.Call(subject); err == nil {
			t.Errorf("subject %q was read as %v", subject, key)
		}
	}
}

// Batches of a session share a subject for ten minutes, and no subject that a worker may write to
// has as many tokens.
func TestWhereLinesAreKept(t *testing.T) {
	var n messages.Names
	at := time.Date(2026, 11, 22, 6, 10, 0, 0, time.UTC)
	for since, want := range map[time.Duration]bool{-1: false, 0: true, 10*time.Minute - 1: true, 10 * time.Minute: false} {
		if same := n.Ended("_", "s", at) == n.Ended("_", "s", at.Add(since).Local()); same != want {
			t.Errorf("the same subject after %v: %v", since, same)
		}
	}
	ofCall := strings.Count(n.OfCall(messages.VerbAudit, messages.KeyOf("_", "s", "b").Call(1)), ".")
	for _, subject := range []string{n.Ended("_", "s", at), n.Ended("_", "s", time.Time{}), n.Aside(messages.KeyOf("_", "s", "b"))} {
		if strings.Count(subject, ".") != ofCall+1 {
			t.Errorf("%s", subject)
		}
	}
}
