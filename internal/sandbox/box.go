package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Box is a sandbox for the commands of one tool. It is safe for concurrent use. A nil Box confines
// nothing.
type Box struct {
	Policy Policy
	Plan   Plan
	// Proxy connects commands to hosts if the network is SomeHosts or AnyHost. Nil: there is
	// no proxy. It is set before the first command runs.
	Proxy   Proxy
	sealed  steps
	machine Machine
	mu      sync.Mutex
	tenants map[string]*Box // guarded by mu; see For
}

// New returns the sandbox of a policy on this machine. It returns an error if the policy
// requires a property that this machine lacks. If necessary, it makes the folder for temporary
// files.
func New(p Policy) (*Box, error) { return NewOn(p, Local()) }

// NewOn is [New] for the machine that m describes.
func NewOn(p Policy, m Machine) (*Box, error) {
	plan := Resolve(p.settled(), m)
	if err := plan.Lacks(p.Required); err != nil {
		return nil, err
	}
	if p.Temp != "" {
		if err := os.MkdirAll(p.Temp, 0o700); err != nil {
			return nil, fmt.Errorf("sandbox: folder for temporary files: %w", err)
		}
	}
	if plan.Way == OnePort {
		g, err := openGate()
		if err != nil {
			return nil, fmt.Errorf("sandbox: port of the proxy: %w", err)
		}
		p.Port = g.port
		plan = Resolve(p.settled(), m)
	}
	b := &Box{Policy: p, Plan: plan, machine: m}
	if err := b.sealed.seal(plan.Steps); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	return b, nil
}

// mostTenants limits how many sandboxes of tenants are kept.
const mostTenants = 256

// For returns the sandbox for the calls of one tenant. It differs from b in one point: its
// folder for temporary files is a folder of the tenant below the tool's folder. A tenant's name
// can always be the name of a folder.
func (b *Box) For(tenant string) (*Box, error) {
	if b == nil || b.Policy.Temp == "" {
		return b, nil
	}
	if tenant == "" {
		tenant = "_"
	}
	if tenant == "." || tenant != filepath.Base(tenant) || !filepath.IsLocal(tenant) {
		return nil, fmt.Errorf("sandbox: the tenant %.80q cannot have a folder", tenant)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if own := b.tenants[tenant]; own != nil {
		return own, nil
	}
	p := b.Policy
	p.Temp = filepath.Join(p.Temp, tenant)
	own, err := NewOn(p, b.machine)
	if err != nil {
		return nil, err
	}
	own.Proxy = b.Proxy
	if b.tenants == nil || len(b.tenants) >= mostTenants {
		b.tenants = map[string]*Box{}
	}
	b.tenants[tenant] = own
	return own, nil
}

// Environ returns additional variables for a command in the sandbox. They say where the
// command may put temporary files and caches.
func (b *Box) Environ() []string {
	if b == nil || b.Policy.Temp == "" {
		return nil
	}
	cache := filepath.Join(b.Policy.Temp, "cache")
	env := []string{"TMPDIR=" + b.Policy.Temp, "XDG_CACHE_HOME=" + cache}
	if !slices.ContainsFunc(b.Policy.Write, func(name string) bool { return filepath.Base(name) == ".npm" }) {
		env = append(env, "npm_config_cache="+filepath.Join(cache, "npm")) // npm uses a variable of its own
	}
	return env
}

// Contains reports whether all processes of a command end when the process that was started
// ends.
func (b *Box) Contains() bool { return b != nil && b.Plan.Spaces.PID }

// errNotRun is the error for a command that the helper could not start.
type errNotRun struct{ error }

func notRun(text string) error { return errNotRun{errors.New(text)} }
