package sandbox

import (
	"os"
	"path/filepath"
	"testing"
)

// The sandbox refuses something to a program: the keys that would allow it are named.
func TestWants(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	python := write("py/versions/3/bin/python3", "")
	script := write("tools/server", "#!"+python+" -u\n")
	link := filepath.Join(dir, "tools/python")
	if err := os.Symlink(python, link); err != nil {
		t.Fatal(err)
	}
	pyenv := write(".pyenv/libexec/pyenv", "")
	data := write("data/a.db", "")
	write("node_modules/foo/index.js", "")
	write("node_modules/@x/y/index.js", "")
	write("tools/node_modules/here/index.js", "")
	write("linked/index.js", "")
	if err := os.Symlink("../../linked", filepath.Join(dir, "tools/node_modules/linked")); err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join(dir, "tools")
	missing := func(name string) string {
		return "Error: Cannot find package '" + name + "' imported from " + tools + "/a.mjs\n    at x (node:internal/y)"
	}
	modules := "sandbox: {read: [" + filepath.Join(dir, "node_modules") + "]}"
	box := &Box{Policy: Policy{Read: []string{"/usr", filepath.Join(dir, "tools")}, Write: []string{"/w"}, Temp: "/t", Hide: []string{"/keys"}}}
	for _, tt := range []struct{ name, program, words, want string }{
		{"nothing", "/usr/bin/env", "Error: no token", ""},
		{"a shim", "", "/home/me/.pyenv/shims/python3: line 12: " + pyenv + ": Permission denied", "sandbox: {read: [" + filepath.Join(dir, ".pyenv") + "]}"},
		{"a link to elsewhere", link, "ModuleNotFoundError: No module named 'encodings'", "sandbox: {read: [" + filepath.Join(dir, "py/versions/3") + "]}"},
		{"an interpreter elsewhere", script, "", "sandbox: {read: [" + filepath.Join(dir, "py/versions/3") + "]}"},
		{"a folder to make", "", "npm error EACCES: permission denied, mkdir '/home/me/.npm'", "sandbox: {state: [/home/me/.npm]}"},
		{"a file to read", "", `PermissionError: [Errno 13] Permission denied: '` + data + `'`, "sandbox: {read: [" + data + "]}"},
		{"a file to write", "", "sh: 1: cannot create " + data + ": Permission denied", "sandbox: {state: [" + filepath.Dir(data) + "]}"},
		{"a new file", "", "OSError: [Errno 30] Read-only file system: '/srv/new/b.sqlite'", "sandbox: {state: [/srv/new]}"},
		{"a cache that is not there", "", "PermissionError: [Errno 13] Permission denied: '/srv/me/.cache'", "sandbox: {state: [/srv/me/.cache]}"},
		{"a sign of YAML", "", `open "/srv/a&b/c": permission denied`, `sandbox: {state: ["/srv/a&b"]}`},
		{"what it may already", "", "/w/x: Permission denied", ""},
		{"a key", "", "cat: /keys/worker.nk: Permission denied", ""},
		{"another process", "", "cat: /proc/1/environ: Permission denied", ""},
		{"the network", "", "curl: (6) Could not resolve host: example.com", "sandbox: {network: host}"},
		{"a package of Node", "", missing("foo"), modules},
		{"a module of a package", "", missing("foo/bar/baz"), modules},
		{"a package of a scope", "", missing("@x/y/z"), modules},
		{"a package with its path", "", missing(dir + "/node_modules/@x/y/index.js"), modules},
		{"a package that is required", "", "Error: Cannot find module 'foo'\nRequire stack:\n- " + tools + "/a.cjs\n- " + tools + "/b.cjs\n", modules},
		{"a link to a package elsewhere", "", missing(tools + "/node_modules/linked/index.js"), "sandbox: {read: [" + filepath.Join(dir, "linked") + "]}"},
		{"a package that is not installed", "", missing("bar"), ""},
		{"a package that it may read", "", missing("here"), ""},
		{"a file of its own", "", missing("./lib.mjs"), ""},
		{"both", "", "mkdir: cannot create directory '/a/b': Read-only file system\ngetaddrinfo: Temporary failure in name resolution", "sandbox: {state: [/a/b], network: host}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := box.Wants(tt.program, tt.words).String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	var none *Box
	if got := none.Wants("/x", "/x: Permission denied").String(); got != "" {
		t.Errorf("without a sandbox: %q", got)
	}
}
