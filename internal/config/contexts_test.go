package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// withContexts gives this test its own configuration folder, with a context of each kind.
func withContexts(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("HOME", "/home/me")
	for _, c := range []Context{
		{Name: "prod", URL: "nats://prod", Creds: "/prod.creds", TLSCA: "/ca", Tenant: "acme", APIURL: "https://api"},
		{Name: "here", Tenant: "mine"},
	} {
		if err := AddContext(c); err != nil {
			t.Fatal(err)
		}
	}
	nats := filepath.Join(dir, "nats", "context")
	if err := os.MkdirAll(nats, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"old":  `{"description": "ours of before", "url": "nats://old", "user": "u", "password": "p", "creds": "~/old.creds", "color_scheme": "", "tls_first": false}`,
		"leaf": `{"url": "nats://leaf", "jetstream_domain": "hub"}`,
		"prod": `{"url": "nats://hidden-by-ours"}`,
	} {
		if err := os.WriteFile(filepath.Join(nats, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The order of precedence is: flags and the environment, a named context, the settings file,
// the selected context. Credentials are used only for the server to which they belong.
func TestContexts(t *testing.T) {
	withContexts(t)
	if err := SelectContext("prod"); err != nil {
		t.Fatal(err)
	}
	const file = "tenant: files\nnats: {url: nats://file, user: files, password: secret}\n"
	for _, tt := range []struct {
		name, file, context string
		env                 []string
		flags               []Flag
		daemon              bool
		want                string // url, tenant, creds, user, ca
	}{
		{name: "selected", want: "nats://prod acme /prod.creds - /ca"},
		{name: "selected, in a daemon", daemon: true, want: "- _ - - -"},
		{name: "selected, under a file", file: file, want: "nats://file files - files -"},
		{name: "none", context: "none", want: "- _ - - -"},
		{name: "none by the environment", env: []string{"TOOLFLEET_CONTEXT=none"}, want: "- _ - - -"},
		{name: "named, over a file", file: file, context: "prod", want: "nats://prod acme /prod.creds - /ca"},
		{name: "named in a daemon", context: "prod", daemon: true, want: "nats://prod acme /prod.creds - /ca"},
		{name: "named by the environment", env: []string{"TOOLFLEET_CONTEXT=old"}, want: "nats://old _ /home/me/old.creds u -"},
		{name: "a flag wins over the environment", context: "here", env: []string{"TOOLFLEET_CONTEXT=old"}, want: "- mine - - -"},
		{name: "without a server, over a file", file: file, context: "here", want: "nats://file mine - files -"},
		{name: "another server", env: []string{"NATS_URL=nats://env"}, want: "nats://env acme - - -"},
		{name: "another server by a flag", context: "prod", flags: []Flag{{"--nats", "nats.url", "nats://flag"}}, want: "nats://flag acme - - -"},
		{name: "another user", env: []string{"NATS_USER=env", "NATS_PASSWORD=p"}, want: "nats://prod acme - env /ca"},
		{name: "another tenant", flags: []Flag{{"--tenant", "tenant", "flag"}}, want: "nats://prod flag /prod.creds - /ca"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sources(tt.file, tt.env, tt.flags...)
			s.Context, s.Selection = tt.context, !tt.daemon
			c := load(t, s)
			words := []string{c.NATS.URL, c.Tenant, c.NATS.Creds, c.NATS.User, c.NATS.TLSCA}
			for i, word := range words {
				if word == "" {
					words[i] = "-"
				}
			}
			if got := strings.Join(words, " "); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
	if e := from(t, load(t, Sources{Context: "prod", Environ: func() []string { return nil }, File: NoFile}), "nats.url"); e.From != "context prod" {
		t.Errorf("the origin is %q", e.From)
	}
}

func TestContextsThatCannotBeUsed(t *testing.T) {
	dir := withContexts(t)
	if err := os.WriteFile(filepath.Join(dir, "toolfleet", "context", "broken.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"leaf": "has jetstream_domain, which toolfleet does not know", "gone": `no context "gone"`, "../prod": "cannot have the name", "broken": "is no context",
	} {
		s := sources("", nil)
		s.Context = name
		if _, err := Load(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := SelectContext("gone"); err != nil {
		t.Fatal(err)
	}
	s := sources("", nil)
	s.Selection = true
	if _, err := Load(s); err == nil || !strings.Contains(err.Error(), "`toolfleet context select none`") {
		t.Errorf("a selected one that is gone: %v", err)
	}
	if err := RemoveContext("broken"); err != nil {
		t.Errorf("a broken one cannot be removed: %v", err)
	}
	if err := RemoveContext("old"); err == nil || !strings.Contains(err.Error(), "nats context rm old") {
		t.Errorf("one of the nats command: %v", err)
	}
}

// The files of contexts are readable by their user alone, and no file is overwritten.
func TestFilesOfContexts(t *testing.T) {
	dir := withContexts(t)
	if err := AddContext(Context{Name: "prod"}); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second one: %v", err)
	}
	if err := SelectContext("prod"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"context": 0o700, "context/prod.json": 0o600, "context.txt": 0o600} {
		info, err := os.Stat(filepath.Join(dir, "toolfleet", name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	all, err := Contexts()
	var names []string
	for _, c := range all {
		names = append(names, c.Name+" "+c.URL)
	}
	if got := strings.Join(names, ", "); err != nil || got != "here , prod nats://prod, leaf , old nats://old" {
		t.Errorf("got %s, %v", got, err)
	}
	if err := RemoveContext("prod"); err != nil || SelectedContext() != "" {
		t.Errorf("after its removal %q is selected, %v", SelectedContext(), err)
	}
}
