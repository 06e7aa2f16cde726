package schemas

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Check is the probe of a checkable write. After the worker of a call was lost, the probe
// finds out whether the write was applied. Exactly one of Command and HTTP is set.
// tool.ReadProbed reads the probe's answer.
type Check struct {
	Command []string // program and arguments, started like those of Exec
	HTTP    *CheckHTTP
	Timeout time.Duration // of one probe
}

// CheckHTTP is a probe by HTTP request. Its headers carry the ids of the call.
type CheckHTTP struct {
	URL     string
	Method  string // GET, or POST with the input of the call as its body
	Headers []CheckHeader
}

// CheckHeader is a header whose value comes from the worker's environment or from the secrets
// folder, so that no tools file has to hold a secret.
type CheckHeader struct{ Name, Env, Secret string }

// DefaultCheckTimeout is the timeout of a probe whose entry has none.
const DefaultCheckTimeout = 10 * time.Second

// ownHeaders matches headers that toolfleet or the HTTP client sets itself.
var ownHeaders = regexp.MustCompile(`(?i)^(toolfleet-.*|host|connection|content-length|content-type|transfer-encoding|trailer)$`)

func (f *yamlFile) check(p string, in *entryInFile) *Check {
	if in.Check == nil {
		return nil
	}
	check := &Check{Command: in.Check.Command, Timeout: DefaultCheckTimeout}
	if d := f.duration(p+"/timeout", in.Check.Timeout); d > 0 {
		check.Timeout = d
	}
	if request := in.Check.HTTP; request != nil {
		f.url(p+"/http/url", request.URL)
		check.HTTP = &CheckHTTP{URL: request.URL, Method: cmp.Or(request.Method, "GET")}
		for name, value := range request.Headers {
			check.HTTP.Headers = append(check.HTTP.Headers, CheckHeader{name, value.Env, value.Secret})
		}
		f.headers(p+"/http/headers", check.HTTP.Headers)
	}
	return check
}

// url checks an address. Errors do not quote it, because it may contain a secret that should be in
// a header.
func (f *yamlFile) url(p, text string) {
	u, err := url.Parse(text)
	switch {
	case text == "": // it is missing, or was reported already
	case err != nil || u.Hostname() == "":
		f.add(p, "want an address such as https://example.com/probe")
	case u.User != nil:
		f.add(p, "a password is not written here; name its variable under headers")
	}
}

// headers sorts headers into the order of the file, and checks their names.
func (f *yamlFile) headers(p string, headers []CheckHeader) {
	slices.SortFunc(headers, func(a, b CheckHeader) int { return f.inOrder(p, a.Name, b.Name) })
	seen := map[string]bool{}
	for _, h := range headers {
		name := strings.ToLower(h.Name)
		switch {
		case ownHeaders.MatchString(name):
			f.addKey(p+"/"+h.Name, "toolfleet sets this header itself")
		case seen[name]:
			f.addKey(p+"/"+h.Name, "this header is there twice")
		}
		seen[name] = true
	}
}

func (f *yamlFile) retry(p string, in *entryInFile) Retry {
	retry := Retry{
		Attempts:     f.wholeNumber(p+"/attempts", in.Retry.Attempts),
		BackoffMS:    f.backoff(p+"/backoff", in.Retry.Backoff),
		MaxBackoffMS: f.backoff(p+"/max_backoff", in.Retry.MaxBackoff),
	}
	if f.faulty[p] || !f.has(p) {
		return Retry{}
	}
	// Check only the rules that hold for every kind. effects checks the rules that depend on
	// kind and on_crash.
	if _, err := retry.withDefaults(messages.KindRead, ""); err != nil {
		f.add(p, "%v", err)
		return Retry{}
	}
	return retry
}

func (f *yamlFile) backoff(p, text string) int64 {
	d := f.duration(p, text)
	if d > longestBackoff {
		f.add(p, "want at most 1h")
	}
	return d.Milliseconds()
}

// effects checks on_crash, check and retry together, and against the kind of the entry.
func (f *yamlFile) effects(p string, e Entry) {
	if f.faulty[p+"/on_crash"] || f.faulty[p+"/kind"] {
		return
	}
	checkable := e.OnCrash == messages.OnCrashCheckable
	switch {
	case f.has(p+"/check") && !checkable:
		f.addKey(p+"/check", "this is for on_crash: checkable; nothing else asks it")
	case checkable && f.has(p+"/builtin") && !f.has(p+"/exec") && !f.has(p+"/http"):
		f.addKey(p+"/on_crash", "checkable is for exec and http; of a builtin use idempotent or once")
	case checkable && !f.has(p+"/check"):
		f.addKey(p+"/on_crash", "checkable needs a probe to ask: write check: {command: [./probe]}")
	}
	if f.has(p+"/on_crash") && (e.Kind == messages.KindRead || e.Kind == messages.KindCompute) {
		f.addKey(p+"/on_crash", "this is for writes; a %s may always be run again", e.Kind)
	}
	if slices.Contains(FileBuiltins, e.Builtin) {
		return // only the worker knows the builtin's kind and on_crash
	}
	if _, err := e.Retry.withDefaults(cmp.Or(e.Kind, messages.KindWrite), e.OnCrash); err != nil {
		f.addKey(p+"/retry", "%v", err)
	}
}
