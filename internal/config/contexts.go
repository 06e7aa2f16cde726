package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ContextEnv is the variable that names the context if no flag does.
const ContextEnv = envPrefix + "CONTEXT"

// NoContext, as the name of a context, means that no context is used.
const NoContext = "none"

// Context says where a fleet is and which identity asks it. It is a group of settings with a
// name, in a file of the user's configuration folder. Its members for NATS are those of the
// contexts of the nats command.
type Context struct {
	Name        string `json:"-"`
	Description string `json:"description,omitempty"`
	URL         string `json:"url,omitempty"`
	Creds       string `json:"creds,omitempty"`
	NKey        string `json:"nkey,omitempty"`
	User        string `json:"user,omitempty"`
	Password    Secret `json:"password,omitempty"`
	Token       Secret `json:"token,omitempty"`
	TLSCA       string `json:"ca,omitempty"`
	TLSCert     string `json:"cert,omitempty"`
	TLSKey      string `json:"key,omitempty"`
	InboxPrefix string `json:"inbox_prefix,omitempty"`

	Prefix string `json:"toolfleet_prefix,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	// APIURL and APITokenFile are for programs that use the HTTP API. No setting is made from
	// them.
	APIURL       string `json:"api_url,omitempty"`
	APITokenFile string `json:"api_token_file,omitempty"`

	// OfNATS says that the file belongs to the nats command.
	OfNATS bool `json:"-"`
}

// foreign lists members of the nats command's contexts that this program cannot follow,
// although the connection depends on them.
var foreign = []string{"nsc", "user_jwt", "user_seed", "socks_proxy", "jetstream_domain", "jetstream_api_prefix", "tls_first", "windows_cert_store"}

var contextName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// CheckContextName returns an error for a name that no context can have.
func CheckContextName(name string) error {
	if !contextName.MatchString(name) || name == NoContext {
		return fmt.Errorf("a context cannot have the name %.80q: want 1 to 64 of [A-Za-z0-9_.-], and another word than %s", name, NoContext)
	}
	return nil
}

// contextFolders returns the folder of toolfleet's contexts (ours) and the folder of the nats
// command's contexts. A folder is "" if the user has none.
func contextFolders() (ours, nats string) {
	if dir, err := os.UserConfigDir(); err == nil {
		ours = filepath.Join(dir, "toolfleet", "context")
	}
	dir := os.Getenv("XDG_CONFIG_HOME")
	if home, err := os.UserHomeDir(); dir == "" && err == nil {
		dir = filepath.Join(home, ".config")
	}
	if dir != "" {
		nats = filepath.Join(dir, "nats", "context")
	}
	return ours, nats
}

// Contexts returns the user's contexts: those of toolfleet first, sorted by name. If a context
// of toolfleet and one of the nats command have the same name, Contexts returns only that of
// toolfleet. An unreadable context has its error as the description.
func Contexts() (all []Context, err error) {
	ours, nats := contextFolders()
	for _, dir := range []string{ours, nats} {
		files, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if dir == "" || err != nil {
			continue
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".json")
			if CheckContextName(name) != nil || slices.ContainsFunc(all, func(c Context) bool { return c.Name == name }) {
				continue
			}
			c, err := readContext(file, name, dir == nats)
			if err != nil {
				c = Context{Name: name, OfNATS: dir == nats, Description: err.Error()}
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// FindContext reads the context of toolfleet with this name or, if there is none, that of the
// nats command.
func FindContext(name string) (Context, error) {
	if err := CheckContextName(name); err != nil {
		return Context{}, err
	}
	ours, nats := contextFolders()
	for _, dir := range []string{ours, nats} {
		c, err := readContext(filepath.Join(dir, name+".json"), name, dir == nats)
		if !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
	}
	return Context{}, fmt.Errorf("there is no context %.80q; `toolfleet context ls` lists them, `toolfleet context add` makes one", name)
}

func readContext(file, name string, ofNATS bool) (Context, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return Context{}, fmt.Errorf("context %s: %w", name, err)
	}
	c := Context{Name: name, OfNATS: ofNATS}
	if err := json.Unmarshal(body, &c); err != nil {
		return c, fmt.Errorf("context %s: %s is no context: %w", name, file, err)
	}
	if ofNATS {
		var members map[string]any
		_ = json.Unmarshal(body, &members) // it is valid JSON: it was read before
		for _, member := range foreign {
			if v := members[member]; v != nil && v != "" && v != false {
				return c, fmt.Errorf("context %s: it is one of the nats command and has %s, which toolfleet does not know; `toolfleet context add` makes one without", name, member)
			}
		}
	}
	for _, path := range []*string{&c.Creds, &c.NKey, &c.TLSCA, &c.TLSCert, &c.TLSKey, &c.APITokenFile} {
		if rest, ok := strings.CutPrefix(*path, "~/"); ok {
			if home, err := os.UserHomeDir(); err == nil {
				*path = filepath.Join(home, rest)
			}
		}
	}
	return c, nil
}

// AddContext writes a new context. Only the user may read it.
func AddContext(c Context) error {
	if err := CheckContextName(c.Name); err != nil {
		return err
	}
	dir, err := ownContexts()
	if err != nil {
		return err
	}
	body, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, c.Name+".json"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("there is a context %s already; `toolfleet context rm %s` removes it", c.Name, c.Name)
	}
	if err != nil {
		return fmt.Errorf("write the context: %w", err)
	}
	_, err = file.Write(append(body, '\n'))
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("write the context: %w", err)
	}
	return nil
}

// ownContexts makes the folder of toolfleet's contexts.
func ownContexts() (string, error) {
	dir, _ := contextFolders()
	if dir == "" {
		return "", errors.New("this user has no folder for configuration: set XDG_CONFIG_HOME or HOME")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the folder of the contexts: %w", err)
	}
	return dir, nil
}

// RemoveContext removes a context of toolfleet.
func RemoveContext(name string) error {
	c, err := FindContext(name)
	dir, _ := contextFolders()
	if err != nil && c.Name == "" {
		return err
	}
	if c.OfNATS {
		return fmt.Errorf("%s is a context of the nats command: `nats context rm %s` removes it", name, name)
	}
	if err := os.Remove(filepath.Join(dir, name+".json")); err != nil {
		return fmt.Errorf("remove the context: %w", err)
	}
	if SelectedContext() == name {
		return SelectContext("")
	}
	return nil
}

// selection returns the file with the name of the selected context. It is beside the folder of
// contexts, dir.
func selection(dir string) string { return filepath.Join(filepath.Dir(dir), "context.txt") }

// SelectedContext returns the name of the selected context, or "" if none is selected.
func SelectedContext() string {
	dir, _ := contextFolders()
	if dir == "" {
		return ""
	}
	body, _ := os.ReadFile(selection(dir)) // without the file, no context is selected
	return strings.TrimSpace(string(body))
}

// SelectContext selects a context for the commands of this user. "" selects none.
func SelectContext(name string) error {
	dir, err := ownContexts()
	if err != nil {
		return err
	}
	if name == "" {
		if err := os.Remove(selection(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("take back the selection: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(selection(dir), []byte(name+"\n"), 0o600); err != nil {
		return fmt.Errorf("select the context: %w", err)
	}
	return nil
}

// Settings of the connection, in groups. A context sets all settings of a group or none, so that
// the identity for one server is not shown to another.
var (
	ofIdentity   = []string{"nats.creds", "nats.nkey", "nats.user", "nats.password", "nats.token"}
	ofTLS        = []string{"nats.tls_ca", "nats.tls_cert", "nats.tls_key"}
	ofConnection = slices.Concat([]string{"nats.url", "nats.inbox_prefix"}, ofIdentity, ofTLS)
)

// contextOf returns the context to use. named reports whether a flag or the variable names it.
// A named context takes precedence over the file.
func contextOf(s Sources, env map[string]string) (c Context, named bool, err error) {
	name := s.Context
	if name == "" {
		name = env[ContextEnv]
	}
	switch {
	case name == NoContext:
		return c, false, nil
	case name != "":
		c, err = FindContext(name)
		return c, true, err
	case !s.Selection:
		return c, false, nil
	}
	if name = SelectedContext(); name == "" {
		return c, false, nil
	}
	if c, err = FindContext(name); err != nil {
		err = fmt.Errorf("%w. It is selected; `toolfleet context select none` selects none", err)
	}
	return c, false, err
}

// loadContext applies a context over the defaults or, if it was named, over the file. A
// context without a server does not change the connection.
func (c *Config) loadContext(x Context, named bool) {
	if x.Name == "" {
		return
	}
	from := "context " + x.Name
	set := func(key, text string) {
		if text != "" && (named || !c.Given(key)) {
			_ = c.set(key, text, from) // each of these settings takes any text
		}
	}
	set("tenant", x.Tenant)
	set("prefix", x.Prefix)
	if x.URL == "" || c.Given("nats.url") && !named {
		return
	}
	for _, key := range ofConnection { // the file's settings are for another server
		s, _ := lookup(key)
		_ = s.readText(c, "")
		delete(c.origins, key)
	}
	for key, text := range map[string]string{
		"nats.url": x.URL, "nats.inbox_prefix": x.InboxPrefix, "nats.creds": x.Creds, "nats.nkey": x.NKey, "nats.user": x.User,
		"nats.password": string(x.Password), "nats.token": string(x.Token), "nats.tls_ca": x.TLSCA, "nats.tls_cert": x.TLSCert, "nats.tls_key": x.TLSKey,
	} {
		set(key, text)
	}
}

// dropContext drops the context's connection if the environment or flags name another server.
// If they name another identity, it drops the context's identity.
func (c *Config) dropContext(given func(key string) bool) {
	drop := func(keys []string) {
		for _, key := range keys {
			if strings.HasPrefix(c.origins[key], "context ") {
				s, _ := lookup(key)
				_ = s.readText(c, "")
				delete(c.origins, key)
			}
		}
	}
	switch {
	case given("nats.url"):
		drop(ofConnection)
	case slices.ContainsFunc(ofIdentity, given):
		drop(ofIdentity)
	}
}
