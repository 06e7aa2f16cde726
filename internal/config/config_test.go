package config

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/schemas"
)

// sources returns sources with these variables and flags, and a file with this text. If the
// text is "", there is no file.
func sources(file string, env []string, flags ...Flag) Sources {
	return Sources{
		Flags: flags, Environ: func() []string { return env },
		ReadFile: func(name string) ([]byte, error) {
			if file == "" || name != FileName {
				return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
			}
			return []byte(file), nil
		},
	}
}

func load(t *testing.T, s Sources) *Config {
	t.Helper()
	c, err := Load(s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func from(t *testing.T, c *Config, key string) Effective {
	t.Helper()
	all := c.Effective()
	i := slices.IndexFunc(all, func(e Effective) bool { return e.Key == key })
	if i < 0 {
		t.Fatalf("no setting %s", key)
	}
	return all[i]
}

func TestPrecedence(t *testing.T) {
	const file = "slots: 3\nnats:\n  url: nats://file:4222\n"
	env := []string{"TOOLFLEET_SLOTS=4", "NATS_URL=nats://env:4222"}
	for name, tc := range map[string]struct {
		s                  Sources
		slots, slotsFrom   string
		server, serverFrom string
	}{
		"default": {sources("", nil), "10", "default", `""`, "default"},
		"file":    {sources(file, nil), "3", "toolfleet.yaml:1", "nats://file:4222", "toolfleet.yaml:3"},
		"env":     {sources(file, env), "4", "TOOLFLEET_SLOTS", "nats://env:4222", "NATS_URL"},
		"our own variable before the common one": {
			sources(file, append(env, "TOOLFLEET_NATS_URL=nats://ours:4222")), "4", "TOOLFLEET_SLOTS", "nats://ours:4222", "TOOLFLEET_NATS_URL"},
		"flag": {sources(file, env, Flag{"--slots", "slots", "5"}, Flag{"--nats", "nats.url", "nats://flag:4222"}),
			"5", "--slots", "nats://flag:4222", "--nats"},
		"an empty variable is none": {sources(file, []string{"TOOLFLEET_SLOTS=", "NATS_URL="}), "3", "toolfleet.yaml:1", "nats://file:4222", "toolfleet.yaml:3"},
	} {
		t.Run(name, func(t *testing.T) {
			c := load(t, tc.s)
			slots, server := from(t, c, "slots"), from(t, c, "nats.url")
			got := []string{slots.Value, slots.From, server.Value, server.From}
			if diff := cmp.Diff([]string{tc.slots, tc.slotsFrom, tc.server, tc.serverFrom}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFileIsStrict(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"unknown key":       {"slots: 3\nqueue_timeuot: 60s\n", `toolfleet.yaml:2:1: unknown key "queue_timeuot"; did you mean queue_timeout?`},
		"far from any":      {"colour: red\n", "toolfleet.yaml:1:1: unknown key \"colour\"; `toolfleet config print` lists the keys"},
		"in a section":      {"log:\n  level: info\n  farmat: json\n", `toolfleet.yaml:3:3: unknown key "log.farmat"; did you mean log.format?`},
		"twice":             {"slots: 3\nslots: 4\n", `toolfleet.yaml:2:1: key "slots" is there twice, first in line 1`},
		"not YAML":          {"slots: [\n", "toolfleet.yaml:1:8: not valid YAML: "},
		"text for a number": {"slots: \"3\"\n", "toolfleet.yaml:1:8: slots: want a whole number from 1, got text"},
		"number for text":   {"prefix: 7\n", "toolfleet.yaml:1:9: prefix: want text, got a number"},
		"too small":         {"slots: 0\n", `toolfleet.yaml:1:8: slots: "0" is not a whole number from 1`},
		"no unit":           {"ack_wait: 10\n", "toolfleet.yaml:1:11: ack_wait: want a duration such as 500ms, 10s or 1h30m, got a number"},
		"negative":          {"ack_wait: -1s\n", `toolfleet.yaml:1:11: ack_wait: "-1s" is no duration`},
		"no value":          {"slots:\n", "toolfleet.yaml:1:8: slots: want a whole number from 1, got nothing"},
		"not in the list":   {"log: {level: loud}\n", `toolfleet.yaml:1:14: log.level: "loud" is not one of debug, info, warn, error`},
		"many brackets":     {"pools: {" + strings.Repeat("a: {}, ", 100) + "}\n", "toolfleet.yaml:1:705: more than 100 brackets"},
		"list for a map":    {"pools: [a]\n", "toolfleet.yaml:1:8: pools: want a mapping such as {default: {max_in_flight: 50}}, got a list"},
		"key of a pool":     {"pools: {gpu: {max: 1}}\n", `toolfleet.yaml:1:15: unknown key "max"; the key of a pool is max_in_flight`},
		"no mapping":        {"- slots\n", "toolfleet.yaml:1:1: want settings such as queue_timeout: 60s, got a list"},
		"alias":             {"slots: &x 3\n", "toolfleet.yaml:1:8: anchors and aliases are not read; write the value out"},
		"two documents":     {"slots: 3\n---\nslots: 4\n", "toolfleet.yaml:3:1: a second document starts here; put everything into one"},
		"bad rule":          {"permissions: {deny: [\"Bash(\"]}\n", "permissions.deny: \"Bash(\": want Tool or Tool(pattern)"},
		"number as a rule":  {"permissions: {deny: [1]}\n", "toolfleet.yaml:1:22: permissions.deny: want text (put it into quotes), got a number"},
		"grace over lease":  {"lease: 3s\ngrace: 2s\n", "grace is 2s and lease is 3s"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(sources(tc.file, nil))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q:\n got %v\nwant %s", tc.file, err, tc.want)
			}
		})
	}
}

func TestEveryMistakeIsTold(t *testing.T) {
	_, err := Load(sources("b: 1\na: 2\nslots: x\n", []string{"TOOLFLEET_LEASE=soon"}, Flag{"--window", "window", "none"}))
	want := []string{"toolfleet.yaml:1:1:", "toolfleet.yaml:2:1:", "toolfleet.yaml:3:8:", "TOOLFLEET_LEASE:", "--window:"}
	var got []string
	for line := range strings.Lines(err.Error()) {
		got = append(got, strings.Fields(line)[0])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestWhichFile(t *testing.T) {
	dir := t.TempDir()
	named := filepath.Join(dir, "other.yaml")
	if err := os.WriteFile(named, []byte("tools: tools.yaml\nroot: /srv\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	none := func() []string { return nil }
	byEnv := func() []string { return []string{"TOOLFLEET_CONFIG=" + named} }
	if c := load(t, Sources{Environ: none}); c.File() != "" {
		t.Errorf("read %q where there is no file", c.File())
	}
	if c := load(t, Sources{Environ: byEnv}); c.File() != named || c.Tools != Path(filepath.Join(dir, "tools.yaml")) || c.Root != "/srv" {
		t.Errorf("TOOLFLEET_CONFIG: file %q, tools %q, root %q", c.File(), c.Tools, c.Root)
	}
	if c := load(t, Sources{Environ: byEnv, File: NoFile}); c.File() != "" {
		t.Errorf("--config none: read %q", c.File())
	}
	if _, err := Load(Sources{Environ: none, File: "missing.yaml"}); err == nil || !strings.Contains(err.Error(), "toolfleet init") {
		t.Errorf("a named file that is missing: %v", err)
	}
}

func TestValuesOfEveryKind(t *testing.T) {
	c := load(t, sources(strings.Join([]string{
		"pools: {gpu: {max_in_flight: 4}}", "max_bytes: {CALLS: 10GB, JOBS: 512}", "server: {sync: 100ms, max_payload: 8MB}",
		"permissions:", "  deny:", "    - Bash(rm:*)", "    - |-", "      Write(/etc/**)",
	}, "\n"), []string{"TOOLFLEET_PERMISSIONS_ALLOW=[Read, 'Bash(ls:*)']", "TOOLFLEET_POLL=1s"}))
	want := map[string]string{
		"pools": "{gpu: {max_in_flight: 4}}", "max_bytes": "{CALLS: 10GB, JOBS: 512B}", "server.sync": "100ms", "server.max_payload": "8MB",
		"permissions.deny": `["Bash(rm:*)", "Write(/etc/**)"]`, "permissions.allow": `[Read, "Bash(ls:*)"]`, "poll": "1s", "grace": "2s",
	}
	for key, value := range want {
		if got := from(t, c, key).Value; got != value {
			t.Errorf("%s is %s, want %s", key, got, value)
		}
	}
	if p := c.Provision(); p.MaxBytes["CALLS"] != 10<<30 || p.MaxBytes["JOBS"] != 512 {
		t.Errorf("max_bytes became %v", p.MaxBytes)
	}
}

func TestDefaultsThatFollow(t *testing.T) {
	c := load(t, sources("ack_wait: 1500ms\nlease: 1s\n", nil))
	if c.Coordinators.Poll != 500*time.Millisecond || c.Coordinators.Grace != 200*time.Millisecond {
		t.Errorf("poll %v, grace %v", c.Coordinators.Poll, c.Coordinators.Grace)
	}
}

// The printed settings are a valid file with the same values.
func TestPrintIsAFile(t *testing.T) {
	first := load(t, sources("pools: {gpu: {max_in_flight: 4}}\npermissions: {ask: [Bash]}\nserver: {sync: 1s}\nname: \"a: b\"\n", nil))
	var out strings.Builder
	if err := first.Print(&out); err != nil {
		t.Fatal(err)
	}
	second := load(t, sources(out.String(), nil))
	for i, e := range second.Effective() {
		if want := first.Effective()[i]; e.Value != want.Value {
			t.Errorf("%s: %s after a round, %s before", e.Key, e.Value, want.Value)
		}
	}
}

func TestSecretsAreHidden(t *testing.T) {
	c := load(t, sources("", []string{"NATS_PASSWORD=hunter2", "NATS_TOKEN=hunter2", "NATS_URL=nats://me:hunter2@host:4222"}))
	var out strings.Builder
	if err := c.Print(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "hunter2") || !strings.Contains(out.String(), "nats://(hidden)@host:4222") {
		t.Error(out.String())
	}
	if o := c.Bus("x", nil); o.Password != "hunter2" || o.URL != "nats://me:hunter2@host:4222" {
		t.Errorf("the connection gets %+v", o)
	}
}

func TestStrangeVariables(t *testing.T) {
	c := load(t, sources("", []string{
		"TOOLFLEET_ACKWAIT=1s", "TOOLFLEET_SESSION=s", "TOOLFLEET_ACK_WAIT=1s", "TOOLFLEET_CONFIG=none",
		"TOOLFLEET_URL=http://127.0.0.1:8090", "TOOLFLEET_TOKEN=secret",
	}))
	if diff := cmp.Diff([]string{"TOOLFLEET_ACKWAIT"}, c.Strange()); diff != "" {
		t.Error(diff)
	}
}

func TestStarterHoldsTheDefaults(t *testing.T) {
	body := string(Starter(map[string]string{"tools": "tools.yaml"}))
	c := load(t, sources(body, nil))
	if c.Tools != "tools.yaml" {
		t.Errorf("tools is %q", c.Tools)
	}
	var all []string
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "# "); ok && strings.Contains(rest, ": ") && !strings.Contains(rest, ". ") && rest[0] >= 'a' {
			line = strings.Replace(line, "# ", "", 1)
		}
		all = append(all, line)
	}
	bare := load(t, sources("", nil))
	for i, e := range load(t, sources(strings.Join(all, ""), nil)).Effective() {
		if want := bare.Effective()[i].Value; e.Key != "tools" && e.Value != want {
			t.Errorf("%s: the starter says %s, the default is %s", e.Key, e.Value, want)
		}
	}
}

func TestTheTable(t *testing.T) {
	seen := map[string]string{}
	for _, s := range settings {
		if s.about == "" || strings.HasSuffix(s.about, ".") {
			t.Errorf("%s: about %q", s.key, s.about)
		}
		for _, env := range s.envNames() {
			if seen[env] != "" {
				t.Errorf("%s is read for %s and %s", env, seen[env], s.key)
			}
			seen[env] = s.key
		}
		s.show(&Config{}) // would panic on an unknown type
	}
	if Env("nats.tls_ca") != "TOOLFLEET_NATS_TLS_CA" {
		t.Error(Env("nats.tls_ca"))
	}
}

// The JSON Schema and the reader accept and refuse the same files.
func TestSchemaAgrees(t *testing.T) {
	schema, err := schemas.Compile(Schema())
	if err != nil {
		t.Fatal(err)
	}
	files := []string{
		"{}", "slots: 3", "slots: 0", "slots: x", "slots: \"3\"", "nats: {url: a, creds: b}", "nats: {uri: a}", "natz: {}", "prefix: 7",
		"ack_wait: 10s", "ack_wait: 10", "ack_wait: soon", "ack_wait: 1h30m", "server: {sync: always}", "server: {sync: never}", "server: {sync: 1s}",
		"server: {max_payload: 8MB}", "server: {max_payload: 1048576}", "server: {max_payload: lots}", "pools: {a: {max_in_flight: 1}}",
		"pools: {a: {max_in_flight: 0}}", "pools: {a: {}}", "pools: {a: 1}", "pools: [a]", "max_bytes: {CALLS: 1GB}", "max_bytes: {CALLS: x}",
		"permissions: {deny: [Bash]}", "permissions: {deny: Bash}", "permissions: {deny: [1]}", "permissions: {default: deny}", "permissions: {default: maybe}",
		"log: {level: debug, format: json}", "log: {level: 1}", "log: loud", "max_batches: 0", "replicas: 3", "tools: t.yaml\nroot: .", "permissions:", "unsafe_sync: true", "unsafe_sync: yes", "unsafe_sync: 1",
	}
	for _, file := range files {
		var value any
		if err := yaml.Unmarshal([]byte(file), &value); err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		_, read := Load(sources(file, nil))
		if checked := schema.Validate(body); (checked == nil) != (read == nil) {
			t.Errorf("%q: the schema says %v, the reader says %v", file, checked, read)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add("slots: 3\nnats: {url: a}\npermissions:\n  deny: [\"Bash(rm:*)\"]\n")
	f.Add("a: &b [*b]\n? {x: y} : z\n--- 1")
	f.Fuzz(func(t *testing.T, file string) {
		c, err := Load(sources(file+"\n", nil))
		if (c == nil) == (err == nil) {
			t.Errorf("%q: %v and %v", file, c, err)
		}
	})
}
