package secrets_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/secrets"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{"token": "s3cret\r\n", "two": "a\nb", "empty": "\n", "long": strings.Repeat("x", 64<<10+1)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ name, value, fails string }{
		{"token", "s3cret", ""},
		{"two", "a\nb", ""},
		{"empty", "", "secret empty: its file is empty"},
		{"long", "", "secret long: its file has more than 65536 bytes"},
		{"missing", "", "secret missing: it has no file"},
		{"../token", "", `secret "../token": want a name`},
		{"..", "", `secret "..": want a name`},
		{"", "", `secret "": want a name`},
	} {
		value, err := secrets.Folder(dir).Read(tt.name)
		if value != tt.value || (err == nil) != (tt.fails == "") || err != nil && !strings.HasPrefix(err.Error(), tt.fails) {
			t.Errorf("%q: got %.20q, %v, want %q, %q", tt.name, value, err, tt.value, tt.fails)
		}
	}
	if _, err := secrets.Folder("").Read("token"); err == nil || !strings.Contains(err.Error(), "--secrets") {
		t.Errorf("without a folder: %v", err)
	}
}

func TestRedact(t *testing.T) {
	got := secrets.RedactText("a long-secret b short", []string{"long-secret", "short"})
	if want := "a [secret] b short"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
