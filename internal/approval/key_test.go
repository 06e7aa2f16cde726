package approval

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/messages"
)

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "alice.nk")
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := key.Write(path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	again, err := ReadKey(path)
	if err != nil || again.Public() != key.Public() || !strings.HasPrefix(key.Public(), "U") {
		t.Errorf("read %s, wrote %s: %v", again.Public(), key.Public(), err)
	}
	if err := key.Write(path); err == nil {
		t.Error("a key was written over another")
	}
	d, err := again.Sign(messages.Decision{By: "alice"})
	if err != nil || d.Key != key.Public() {
		t.Errorf("signed with %s: %v", d.Key, err)
	}
	if e, err := again.Sign(messages.Decision{By: "alice"}); err != nil || e.Nonce == d.Nonce {
		t.Errorf("two decisions have the nonce %s: %v", e.Nonce, err)
	}
	if _, err := (Key{}).Sign(messages.Decision{}); err == nil {
		t.Error("no key signs")
	}
	if _, err := key.Sign(messages.Decision{Input: []byte("{")}); err == nil {
		t.Error("signed what is no JSON")
	}
}

func TestReadKeyRefuses(t *testing.T) {
	dir := t.TempDir()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := key.pair.Seed()
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	accountSeed, _ := account.Seed()
	for name, tt := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"the group":  {string(seed), 0o640, "open to others"},
		"others":     {string(seed), 0o604, "open to others"},
		"public":     {key.Public(), 0o600, "no seed"},
		"an account": {string(accountSeed), 0o600, "no seed"},
		"cut off":    {string(seed[:40]), 0o600, "no seed"},
		"empty":      {"", 0o600, "no seed"},
		"too much":   {string(seed) + "\n" + string(seed), 0o600, "no seed"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := ReadKey(path)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
		if strings.Contains(fmt.Sprint(err), string(seed[:20])) {
			t.Errorf("%s: the error quotes the seed", name)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "lines"), []byte("\r\n"+string(seed)+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(filepath.Join(dir, "lines")); err != nil {
		t.Errorf("white space around: %v", err)
	}
	if _, err := ReadKey(filepath.Join(dir, "none")); err == nil {
		t.Error("a file that is not there was read")
	}
}
