package schemas

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Check is the probe of a checkable write: when a call's worker was lost, it finds out whether the
// run was applied. Exactly one of Command and HTTP is set. tool.ReadProbed reads its answer.
type Check struct {
	Command []string // program and arguments, started like those of Exec
	HTTP    *CheckHTTP
	Timeout time.Duration // of one probe
}

// CheckHTTP is a probe by HTTP request. It carries the identity of the call in its headers.
type CheckHTTP struct {
	URL     string
	Method  string // GET, or POST with the input of the call as its body
	Headers []CheckHeader
}

// CheckHeader is a header whose value comes from the worker's environment, so that no secret stands
// in a file.
type CheckHeader struct{ Name, Env string }

// DefaultCheckTimeout bounds a probe that sets no timeout.
const DefaultCheckTimeout = 10 * time.Second

const (
	wantCheck  = "check: want {command: [./probe]} or {http: {url: https://...}}"
	wantHTTP   = "http: want {url: https://..., method: GET, headers: {Authorization: {env: TOKEN}}}"
	wantHeader = "headers: want the name of a header and where its value is, as in Authorization: {env: TOKEN}"
	wantRetry  = "retry: want {attempts: 3, backoff: 500ms, max_backoff: 10s}"
)

var (
	headerName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	// ownHeaders matches the headers that toolfleet or the HTTP client sets.
	ownHeaders = regexp.MustCompile(`(?i)^(toolfleet-.*|host|connection|content-length|content-type|transfer-encoding|trailer)$`)
)

func (r *entryReader) check(n yamlNode) {
	check := &Check{Timeout: DefaultCheckTimeout}
	has := r.fields(n, wantCheck, map[string]func(yamlNode){
		"command": func(n yamlNode) { check.Command = r.command(n) },
		"http":    func(n yamlNode) { check.HTTP = r.checkHTTP(n) },
		"timeout": func(n yamlNode) { check.Timeout = r.duration(n, "timeout") },
	})
	switch {
	case has["command"] && has["http"]:
		r.add(n.position, "a check is a command or http, not both")
	case has != nil && !has["command"] && !has["http"]:
		r.add(n.position, "command is missing; "+wantCheck)
	}
	r.entry.Check = check
}

func (r *entryReader) checkHTTP(n yamlNode) *CheckHTTP {
	request := &CheckHTTP{Method: "GET"}
	has := r.fields(n, wantHTTP, map[string]func(yamlNode){
		"url":     func(n yamlNode) { request.URL = r.url(n) },
		"method":  func(n yamlNode) { request.Method = oneOf(r.mistakes, n, "method", "GET", "POST") },
		"headers": func(n yamlNode) { request.Headers = r.headers(n) },
	})
	if has != nil && !has["url"] {
		r.add(n.position, "url is missing; "+wantHTTP)
	}
	return request
}

// url reads an address. Errors do not quote it: it may contain a secret that belongs in a header.
func (r *entryReader) url(n yamlNode) string {
	const want = "an address such as https://example.com/probe"
	text, ok := r.text(n, "url", want)
	if !ok {
		return ""
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || !strings.HasPrefix(text, "http://") && !strings.HasPrefix(text, "https://"):
		r.add(n.position, "url: want "+want)
	case u.User != nil:
		r.add(n.position, "url: a password is not written here; name its variable under headers")
	}
	return text
}

func (r *entryReader) headers(n yamlNode) []CheckHeader {
	members, ok := n.value.([]yamlMember)
	if !ok {
		r.add(n.position, wantHeader+", got %s", n.typeName())
	}
	var headers []CheckHeader
	for _, member := range members {
		same := func(h CheckHeader) bool { return strings.EqualFold(h.Name, member.key) }
		switch {
		case !headerName.MatchString(member.key):
			r.add(member.position, "headers: %q is no name of a header", clip(member.key))
		case ownHeaders.MatchString(member.key):
			r.add(member.position, "headers: %s is set by toolfleet itself", clip(member.key))
		case slices.ContainsFunc(headers, same):
			r.add(member.position, "headers: %s is there twice", clip(member.key))
		}
		header := CheckHeader{Name: member.key}
		has := r.fields(member.node, wantHeader, map[string]func(yamlNode){
			"env": func(n yamlNode) {
				header.Env = r.matching(n, "env", environmentName, "the name of an environment variable")
			},
		})
		if has != nil && !has["env"] {
			r.add(member.node.position, "env is missing; "+wantHeader)
		}
		headers = append(headers, header)
	}
	return headers
}

func (r *entryReader) retry(n yamlNode) {
	before := len(r.all)
	var retry Retry
	has := r.fields(n, wantRetry, map[string]func(yamlNode){
		"attempts":    func(n yamlNode) { retry.Attempts = r.attempts(n) },
		"backoff":     func(n yamlNode) { retry.BackoffMS = r.backoff(n, "backoff") },
		"max_backoff": func(n yamlNode) { retry.MaxBackoffMS = r.backoff(n, "max_backoff") },
	})
	switch {
	case len(r.all) > before:
		return
	case !has["attempts"]:
		r.add(n.position, "attempts is missing; "+wantRetry)
		return
	}
	// The rules for a write are checked in effects, once the whole entry is read.
	if _, err := retry.withDefaults(messages.KindRead, ""); err != nil {
		r.add(n.position, "retry: %v", err)
		return
	}
	r.entry.Retry = retry
}

func (r *entryReader) attempts(n yamlNode) int {
	attempts, err := strconv.Atoi(fmt.Sprint(n.value))
	if _, isText := n.value.(string); isText || err != nil || attempts < 1 || attempts > maxAttempts {
		r.add(n.position, "attempts: want a number from 1 to %d, the first run included", maxAttempts)
	}
	return attempts
}

func (r *entryReader) backoff(n yamlNode, key string) int64 {
	d := r.duration(n, key)
	if d > longestBackoff {
		r.add(n.position, "%s: want at most 1h", key)
	}
	return d.Milliseconds()
}

// effects checks the keys about failed and lost runs against each other.
func (r *entryReader) effects(has func(key string) bool) {
	checkable := r.entry.OnCrash == messages.OnCrashCheckable
	switch {
	case has("check") && !checkable:
		r.add(r.at["check"], "check is for on_crash: checkable; nothing else asks it")
	case checkable && has("builtin") && !has("exec"):
		r.add(r.at["on_crash"], "on_crash: checkable is for exec; of a builtin use idempotent or once")
	case checkable && !has("check"):
		r.add(r.at["on_crash"], "on_crash: checkable needs a probe to ask: write check: {command: [./probe]}")
	}
	if slices.Contains(FileBuiltins, r.entry.Builtin) {
		return // the worker knows the builtin's kind and on_crash
	}
	kind := r.entry.Kind
	if kind == "" {
		kind = messages.KindWrite
	}
	if _, err := r.entry.Retry.withDefaults(kind, r.entry.OnCrash); err != nil {
		r.add(r.at["retry"], "retry: %v", err)
	}
}
