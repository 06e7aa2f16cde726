// Package config reads the settings of a process from flags, the environment and a file. It
// builds from them the Config that each package owns. If several sources have a setting, the
// first of them in this order counts:
//
//	flag  >  TOOLFLEET_<KEY>  >  named context  >  toolfleet.yaml  >  selected context  >  default
//
// One table (settings.go) holds every setting: its key, environment names, bounds and
// description. The file's reader, its JSON Schema, the help of flags, `config print` and the
// file that `init` writes come from that table, so they cannot disagree. Defaults come from
// the packages that own the settings. Only three groups of defaults are here: those of logs,
// of the audit log's hashes, and of the NATS server of dev and nats.
//
// The file is strict. An unknown key and a value of the wrong kind are errors with file, line
// and column, and all of them are reported together. If [strictyaml] cannot read the file, for
// example because it has a key twice, it is not checked further. Paths in a file are relative
// to it. If no file is named, toolfleet.yaml in the current folder is read, if it exists, as
// with `make` and `docker compose`.
//
// This package does not interpret the settings. The packages that own them do.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/tuning"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/principal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// FileName is the settings file that is read from the current folder if no file is named.
const FileName = "toolfleet.yaml"

// NoFile, as the name of the settings file, means that no file is read.
const NoFile = "none"

// Types of settings with a special text form.
type (
	// Path is a file or folder. A relative path in a settings file is resolved against the
	// folder of that file. Any other relative path is resolved against the current folder.
	Path string
	// Secret is a text that `config print` hides.
	Secret string
	// Size is a number of bytes, written 10MB or 10MiB (both 1,024-based). 0 means no limit.
	Size int64
	// Interval is how often data is synced to the disk. It is written as a duration, or as
	// always, which is 0 and means a sync before each acknowledgement.
	Interval time.Duration
)

// Config holds the value in effect of every setting. Most fields have the types of the packages
// that use them. The table in settings.go explains each setting. Settings that coordinators and
// workers share are only in Coordinators.
type Config struct {
	NATS         bus.Options
	Streams      provision.Config
	Coordinators tuning.Config
	Workers      worker.Config
	MaxBatches   int // the bound of open batches, for Streams
	UnsafeSync   bool
	Tenant       string

	Audit struct {
		Hash    string
		Key     Secret
		Include []string
	}
	Tools, Root Path
	MCP         Path // a file .mcp.json
	Secrets     Path
	Policy      Path
	Permissions struct {
		Default          string
		Deny, Ask, Allow []string
	}
	Approver struct {
		Key  Path
		Name string
	}

	// HTTPKeys are the public keys of the HTTP servers. An HTTP server signs with its key
	// which user asks for a batch.
	HTTPKeys []string
	// TenantPools are the pools that belong to one tenant: the tenant, by pool.
	TenantPools map[string]string

	TraceURL string
	Log      struct{ Level, Format string }
	HTTP     string
	API      struct {
		Listen  string
		Tokens  Path
		JWT     struct{ Issuer, Audience, Keys, TenantClaim string }
		Open    bool
		Origins []string
	}
	Server struct {
		Listen     string
		Data       Path
		Sync       Interval
		MaxPayload Size
		Config     Path
		Open       bool
	}

	file    string            // path of the file that was read; "": none
	origins map[string]string // source of each setting that is not a default, by key
	strange []string          // TOOLFLEET_ variables that name no setting
}

// Flag is a setting from the command line, as text.
type Flag struct {
	Name string // the flag's name with its dashes: --slots
	Key  string
	Text string
}

// Sources says where settings come from. The zero value reads the real environment and the file of
// the current folder.
type Sources struct {
	File    string // "": TOOLFLEET_CONFIG, else [FileName] if it exists; [NoFile]: none
	Context string // "": TOOLFLEET_CONTEXT, else the selected context; [NoContext]: none
	// Selection lets the context that the user has selected count. It is set for commands that
	// people run. A daemon must not follow a person's selection.
	Selection bool
	Flags     []Flag
	Environ   func() []string              // nil: os.Environ
	ReadFile  func(string) ([]byte, error) // nil: os.ReadFile
}

// Load reads and checks the settings. The error joins all mistakes in the settings, each with
// its place.
func Load(s Sources) (*Config, error) {
	if s.Environ == nil {
		s.Environ = os.Environ
	}
	if s.ReadFile == nil {
		s.ReadFile = os.ReadFile
	}
	env := map[string]string{}
	for _, pair := range s.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	c := defaults()
	errs := c.loadFile(s, env)
	if x, named, err := contextOf(s, env); err != nil {
		errs = append(errs, err)
	} else {
		c.loadContext(x, named)
		c.dropContext(func(key string) bool { return givenOutside(s, env, key) })
	}
	errs = append(errs, c.loadEnv(env)...)
	for _, f := range s.Flags {
		if err := c.set(f.Key, f.Text, f.Name); err != nil {
			errs = append(errs, err)
		}
	}
	// Other tools give other values of this variable a meaning, so such a value is no error.
	if !c.Given("trace_content") && strings.EqualFold(env[captureContent], "true") {
		c.Workers.TraceContent, c.origins["trace_content"] = true, captureContent
	}
	if len(errs) == 0 {
		c.derive()
		errs = c.validate()
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return c, nil
}

// File returns the path of the settings file that was read; "" if there was none.
func (c *Config) File() string { return c.file }

// Given reports whether a setting comes from a source and not from its default.
func (c *Config) Given(key string) bool { return c.origins[key] != "" }

// Strange lists environment variables that begin with TOOLFLEET_ and name no setting.
func (c *Config) Strange() []string { return c.strange }

// defaults returns all settings with the defaults of the packages that own them. If a default
// depends on other settings, it is zero here, and derive fills it in.
func defaults() *Config {
	c := &Config{
		NATS:         bus.Options{Prefix: wire.DefaultPrefix, Timeout: bus.DefaultTimeout},
		Streams:      provision.Config{}.WithDefaults(),
		Coordinators: tuning.Default(),
		Workers:      worker.DefaultConfig(),
		Tenant:       messages.OneTenant,
		origins:      map[string]string{},
	}
	c.Coordinators.Grace, c.Workers.ApprovalTTL = 0, 0
	c.Audit.Hash, c.Permissions.Default = "keyed", string(permission.Allow)
	c.Log.Level, c.Log.Format = "info", "auto"
	c.API.Listen = "127.0.0.1:8090"
	c.Server.Listen, c.Server.MaxPayload = "127.0.0.1:4222", 1<<20
	return c
}

func (c *Config) loadFile(s Sources, env map[string]string) []error {
	name, wanted := s.File, s.File != ""
	if !wanted && env[ConfigEnv] != "" {
		name, wanted = env[ConfigEnv], true
	}
	if !wanted {
		name = FileName
	}
	if name == NoFile {
		return nil
	}
	body, err := s.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && !wanted {
		return nil
	}
	if err != nil {
		return []error{fmt.Errorf("read the settings: %w; `toolfleet init` writes a file to start from, --config names another", err)}
	}
	c.file = name
	if err := c.readFile(name, body); err != nil {
		return []error{err}
	}
	return nil
}

// givenOutside reports whether a flag or the environment gives a setting.
func givenOutside(s Sources, env map[string]string, key string) bool {
	row, _ := lookup(key)
	return slices.ContainsFunc(s.Flags, func(f Flag) bool { return f.Key == key }) ||
		slices.ContainsFunc(row.envNames(), func(name string) bool { return env[name] != "" })
}

// loadEnv reads the settings in the environment. It also records the variables that begin with
// TOOLFLEET_ and name no setting.
func (c *Config) loadEnv(env map[string]string) (errs []error) {
	known := map[string]bool{ConfigEnv: true, ContextEnv: true}
	for _, s := range settings {
		// The first name takes precedence, so it is read last.
		for _, name := range slices.Backward(s.envNames()) {
			known[name] = true
			if text, ok := env[name]; ok && text != "" {
				if err := c.set(s.key, text, name); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.HasPrefix(name, envPrefix) && !known[name] && !ofPrograms[name] && !strings.HasSuffix(strings.TrimPrefix(name, envPrefix), serverKey) {
			c.strange = append(c.strange, name)
		}
	}
	return errs
}

// serverKey is the ending of variables from which the files of deploy/nats read public keys.
// These variables are not settings of toolfleet.
const serverKey = "_NKEY"

// ofPrograms lists variables that begin with TOOLFLEET_ but name no setting. loadEnv does not
// report them as mistyped settings. toolfleet sets most of them for exec tools. The first two
// tell agents where the HTTP API is. toolfleet itself may see these variables, because it may
// run inside a tool or beside an agent.
var ofPrograms = map[string]bool{
	"TOOLFLEET_URL": true, "TOOLFLEET_TOKEN": true,
	"TOOLFLEET_SESSION": true, "TOOLFLEET_BATCH": true, "TOOLFLEET_CALL_ID": true, "TOOLFLEET_INDEX": true,
	"TOOLFLEET_ATTEMPT": true, "TOOLFLEET_IDEMPOTENCY_KEY": true, "TOOLFLEET_FENCE": true,
	"TOOLFLEET_PROGRESS_FD": true,
}

// set reads one setting from the text of a flag or an environment variable.
func (c *Config) set(key, text, from string) error {
	s, ok := lookup(key)
	if !ok {
		return fmt.Errorf("%s: there is no setting %q", from, key)
	}
	if err := s.readText(c, text); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	c.origins[key] = from
	return nil
}

// derive fills in the settings whose default depends on another setting.
func (c *Config) derive() {
	common := &c.Coordinators
	if common.Poll == 0 {
		common.Poll = tuning.DefaultPoll(common.AckWait)
	}
	if common.Grace == 0 {
		common.Grace = journal.DefaultGrace(c.Workers.Lease)
	}
	if c.Workers.ApprovalTTL == 0 {
		c.Workers.ApprovalTTL = min(worker.DefaultConfig().ApprovalTTL, common.BatchTTL)
	}
}

// validate checks settings against each other. It also checks bounds that the table cannot
// express.
func (c *Config) validate() (errs []error) {
	if grace, lease := c.Coordinators.Grace, c.Workers.Lease; grace > lease/3 {
		errs = append(errs, fmt.Errorf("grace is %v and lease is %v: a lease is renewed at a third of it, so grace has to be shorter than that", grace, lease))
	}
	if ask, batch := c.Workers.ApprovalTTL, c.Coordinators.BatchTTL; ask > batch {
		errs = append(errs, fmt.Errorf("approval_ttl is %v and batch_ttl is %v: nobody is asked for longer than a batch lives", ask, batch))
	}
	if c.Approver.Name != "" && !approverName.MatchString(c.Approver.Name) {
		errs = append(errs, fmt.Errorf("approver.name %.80q: want 1 to 64 of [A-Za-z0-9_.@-]", c.Approver.Name))
	}
	if !messages.IsToken(c.Tenant) {
		errs = append(errs, fmt.Errorf("tenant %.80q: want 1 to 64 of [A-Za-z0-9_-]", c.Tenant))
	}
	if c.TraceURL != "" && !traceURL.MatchString(c.TraceURL) {
		errs = append(errs, fmt.Errorf("trace_url %.200q: want the URL of a page with %s in it, for example http://localhost:16686/trace/%s", HideUser(c.TraceURL), traceID, traceID))
	}
	if (c.NATS.TLSCert == "") != (c.NATS.TLSKey == "") {
		errs = append(errs, errors.New("nats.tls_cert and nats.tls_key belong together: give both or neither"))
	}
	for i, key := range c.HTTPKeys {
		if err := principal.CheckKey(key); err != nil {
			errs = append(errs, fmt.Errorf("http_keys[%d]: %w", i, err))
		}
	}
	if err := c.AuditLog().Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Server.MaxPayload < 1<<10 || c.Server.MaxPayload > 64<<20 {
		errs = append(errs, fmt.Errorf("server.max_payload is %v: want 1KB to 64MB", c.Server.MaxPayload))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Workers.Pools)) {
		if !messages.IsToken(name) {
			errs = append(errs, fmt.Errorf("pools: %.80q is no name of a pool; want 1 to 64 of [A-Za-z0-9_-]", name))
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(c.TenantPools)) {
		if tenant := c.TenantPools[pool]; !messages.IsToken(pool) || !messages.IsToken(tenant) {
			errs = append(errs, fmt.Errorf("tenant_pools: %.80q: %.80q: want a pool and a tenant, each 1 to 64 of [A-Za-z0-9_-]", pool, tenant))
		}
	}
	for _, s := range [][2]string{{"worker_tenant", c.Workers.Tenant}, {"worker_pool", c.Workers.Pool}} {
		if s[1] != "" && !messages.IsToken(s[1]) {
			errs = append(errs, fmt.Errorf("%s %.80q: want 1 to 64 of [A-Za-z0-9_-]", s[0], s[1]))
		}
	}
	if _, err := c.shortForms(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// traceID is the placeholder in trace_url for the id of a trace.
const traceID = "{trace_id}"

var traceURL = regexp.MustCompile(`^https?://[^\s{}]+\{trace_id\}[^\s{}]*$`)

var approverName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,64}$`)

// resolve makes a relative path of a settings file relative to that file's folder.
func resolve(file string, p Path) Path {
	if p == "" || filepath.IsAbs(string(p)) || file == "" {
		return p
	}
	return Path(filepath.Join(filepath.Dir(file), string(p)))
}
