package schemas

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/strictyaml"
)

// HTTP says how a tool sends an HTTP request for each call.
type HTTP struct {
	Method string
	Origin string // scheme and host: a template cannot change them
	Path   string // a template that begins with /; each value is a segment, or a part of one
	// Query is the query of the URL, a template. Params are further parameters.
	Query   string
	Params  []HTTPValue
	Headers []HTTPValue
	// Rest sends the remaining members of the input as parameters: those that no other part of
	// the request uses.
	Rest bool
	Body HTTPBody
	// Timeout is the longest that request and answer may take; 0: only the tool's timeout
	// counts.
	Timeout     time.Duration
	Success     []int  // the statuses of success; none: every 2xx that is not in Failure
	Failure     []int  // statuses after which a write is known not to be applied
	Output      string // JSON pointer to the output in the answer; "": the whole answer
	MaxResponse int    // bytes of an answer
	Loopback    bool   // may the target be this machine?
	// Identity adds the headers Toolfleet-..., which say which call the request belongs to.
	Identity bool
}

// HTTPBody says what the body of a request is.
type HTTPBody string

// The bodies: the whole input as JSON, the members that no other part of the request uses, or
// none.
const (
	HTTPBodyInput HTTPBody = "input"
	HTTPBodyRest  HTTPBody = "rest"
	HTTPBodyNone  HTTPBody = "none"
)

// HTTPValue is the value of a header or parameter: one of Template, Secret and Env.
type HTTPValue struct {
	Name     string
	Template string
	Secret   string // file of the secrets folder
	Env      string // variable of the worker
	Prefix   string // before the value of Secret or Env, such as "Bearer "
}

// DefaultMaxResponse is the greatest size of an answer, in bytes, if the entry has no
// limit.
const DefaultMaxResponse = 4 << 20

type httpInFile struct {
	Method, URL, Body, Timeout, Output string
	Query                              json.RawMessage // "rest", or values by name
	Headers                            map[string]httpValueInFile
	Success, Failure                   []json.Number
	MaxResponse                        json.RawMessage `json:"max_response"`
	Loopback, Identity                 bool
}

// httpValueInFile is a template as text, or a mapping.
type httpValueInFile HTTPValue

func (v *httpValueInFile) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(raw, []byte(`"`)) {
		return json.Unmarshal(raw, &v.Template)
	}
	return json.Unmarshal(raw, (*HTTPValue)(v))
}

var (
	httpURL = regexp.MustCompile(`^(https?://[^/?#{}\\@\s]+)(/[^?#]*)?(?:\?([^#]*))?$`)
	// transportHeaders matches the headers that the runner sets itself, besides [ownHeaders].
	transportHeaders = regexp.MustCompile(`(?i)^(idempotency-key|traceparent|tracestate|te|upgrade|expect|keep-alive|accept-encoding|proxy-.*)$`)
)

// http checks the request of the entry at p.
func (f *yamlFile) http(p string, in *httpInFile, schema json.RawMessage) *HTTP {
	if in == nil {
		return nil
	}
	h := &HTTP{
		Method: cmp.Or(in.Method, "GET"), Output: in.Output, Loopback: in.Loopback, Identity: in.Identity,
		Timeout: f.duration(p+"/timeout", in.Timeout), MaxResponse: DefaultMaxResponse,
	}
	members := membersOf(schema)
	h.Origin, h.Path, h.Query = f.httpURL(p+"/url", in.URL, members)
	h.Headers = f.httpValues(p+"/headers", in.Headers, members)
	f.settable(p+"/headers", h.Headers)
	h.Rest, h.Params = f.httpQuery(p+"/query", in.Query, members)
	h.Body = f.httpBody(p, h.Method, HTTPBody(in.Body), h.Rest)
	for _, status := range in.Success {
		h.Success = append(h.Success, f.wholeNumber(p+"/success", status))
	}
	for _, status := range in.Failure {
		n := f.wholeNumber(p+"/failure", status)
		if slices.Contains(h.Success, n) {
			f.addKey(p+"/failure", "the status %d is in success too", n)
		}
		h.Failure = append(h.Failure, n)
	}
	if size := f.maxOutput(p+"/max_response", in.MaxResponse); size > 0 {
		h.MaxResponse = size
	}
	return h
}

// settable records a violation for each header at p that toolfleet sets itself.
func (f *yamlFile) settable(p string, headers []HTTPValue) {
	for _, header := range headers {
		if ownHeaders.MatchString(header.Name) || transportHeaders.MatchString(header.Name) {
			f.addKey(p+"/"+header.Name, "toolfleet sets this header itself")
		}
	}
}

// httpBody returns the kind of body that a request has. A method without a body sends none.
func (f *yamlFile) httpBody(p, method string, body HTTPBody, rest bool) HTTPBody {
	bodiless := method == http.MethodGet || method == http.MethodHead || method == http.MethodDelete
	switch {
	case body == "" && (bodiless || rest):
		return HTTPBodyNone
	case body == "":
		return HTTPBodyInput
	case body != HTTPBodyNone && bodiless:
		f.addKey(p+"/body", "a %s has no body; write query: rest to send the input", method)
	case body == HTTPBodyRest && rest:
		f.addKey(p+"/body", "the rest of the input is in the query already")
	}
	return body
}

// httpURL splits an address into its fixed part, and the templates of path and query.
func (f *yamlFile) httpURL(p, text string, members httpMembers) (origin, path, query string) {
	if text == "" { // it is missing, or was reported already
		return "", "", ""
	}
	parts := httpURL.FindStringSubmatch(text)
	if parts == nil {
		f.add(p, "want an address such as https://example.com/orders/{id}: its host is fixed, it has no password and nothing after a #")
		return "", "", ""
	}
	if u, err := url.Parse(parts[1]); err != nil || u.Hostname() == "" {
		f.add(p, "want an address such as https://example.com/orders/{id}")
	}
	origin, path, query = parts[1], cmp.Or(parts[2], "/"), parts[3]
	for _, part := range []string{path, query} {
		f.template(p, part, members, true)
	}
	return origin, path, query
}

// httpQuery reads the word rest, or parameters by name.
func (f *yamlFile) httpQuery(p string, raw json.RawMessage, members httpMembers) (rest bool, params []HTTPValue) {
	if len(raw) == 0 {
		return false, nil
	}
	if string(raw) == `"rest"` {
		return true, nil
	}
	var values map[string]httpValueInFile
	if json.Unmarshal(raw, &values) != nil {
		f.add(p, "want the word rest, or parameters by name such as {limit: \"{limit}\"}")
	}
	return false, f.httpValues(p, values, members)
}

// httpValues checks values and sorts them into the order of the file.
func (f *yamlFile) httpValues(p string, in map[string]httpValueInFile, members httpMembers) (values []HTTPValue) {
	first := map[string]bool{}
	for name, v := range in {
		v.Name = name
		values = append(values, HTTPValue(v))
	}
	slices.SortFunc(values, func(a, b HTTPValue) int { return f.inOrder(p, a.Name, b.Name) })
	for _, v := range values {
		at := p + "/" + escapeToken(v.Name)
		if folded := strings.ToLower(v.Name); first[folded] && strings.HasSuffix(p, "/headers") {
			f.addKey(at, "this header is there twice")
		} else {
			first[folded] = true
		}
		switch {
		case f.faulty[at]:
		case v.Secret != "" && v.Env != "":
			f.add(at, "want secret or env, not both")
		case v.Prefix != "" && v.Secret == "" && v.Env == "":
			f.add(at, "prefix stands before a secret or an env")
		case v.Secret == "" && v.Env == "":
			f.template(at, v.Template, members, false)
		}
	}
	return values
}

// inOrder compares two keys of the mapping at p by their places in the file.
func (f *yamlFile) inOrder(p, a, b string) int {
	at := func(name string) strictyaml.Position {
		key, _, _ := f.Root.Find(p + "/" + escapeToken(name))
		return key.KeyAt
	}
	return cmp.Or(cmp.Compare(at(a).Line, at(b).Line), cmp.Compare(at(a).Column, at(b).Column))
}

// httpMembers says which members an input may have, and which every input has.
type httpMembers struct {
	known map[string]bool // nil: there is no input
	need  map[string]bool
	open  bool // the schema does not limit the members
}

func membersOf(schema json.RawMessage) httpMembers {
	var s struct {
		Properties map[string]json.RawMessage
		Required   []string
	}
	m := httpMembers{known: map[string]bool{}, need: map[string]bool{}}
	m.open = json.Unmarshal(schema, &s) != nil
	for name := range s.Properties {
		m.known[name] = true
	}
	for _, name := range s.Required {
		m.need[name] = true
	}
	return m
}

// template checks a template. If needed is true, the schema must require the members that the
// template names.
func (f *yamlFile) template(p, text string, members httpMembers, needed bool) {
	t, err := ParseTemplate(text)
	if err != nil {
		f.add(p, "%v", err)
		return
	}
	for _, path := range t.Paths() {
		switch name := path[0]; {
		case members.open:
		case members.known == nil:
			f.add(p, "{%s} has no meaning here: there is no input", name)
		case !members.known[name]:
			f.add(p, "{%s} is no property of input_schema", name)
		case needed && !members.need[name]:
			f.add(p, "{%s} has to be in required of input_schema, because the address needs it", name)
		}
	}
}
