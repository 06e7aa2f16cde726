package httptool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// form makes the requests of a tool from its templates.
type form struct {
	schemas.HTTP
	host     string // the only host to which requests go
	segments []schemas.Template
	query    schemas.Template
	params   []value
	headers  []value
	secrets  secrets.Folder
}

// value is a header or parameter with its template read.
type value struct {
	schemas.HTTPValue
	template schemas.Template
}

// newForm reads the templates. The error names a secret or variable that is missing.
func newForm(request schemas.HTTP, folder secrets.Folder) (*form, error) {
	f := &form{HTTP: request, secrets: folder}
	origin, err := url.Parse(request.Origin)
	if err != nil || origin.Host == "" {
		return nil, errors.New("the address cannot be read")
	}
	f.host = origin.Host
	for segment := range strings.SplitSeq(strings.TrimPrefix(request.Path, "/"), "/") {
		t, err := schemas.ParseTemplate(segment)
		if err != nil {
			return nil, fmt.Errorf("url: %w", err)
		}
		f.segments = append(f.segments, t)
	}
	if f.query, err = schemas.ParseTemplate(request.Query); err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	if f.params, err = f.values(request.Params); err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	if f.headers, err = f.values(request.Headers); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	return f, nil
}

func (f *form) values(given []schemas.HTTPValue) (values []value, err error) {
	for _, v := range given {
		t, err := schemas.ParseTemplate(v.Template)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		if _, err := hiddenValue(v, f.secrets); err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		values = append(values, value{v, t})
	}
	return values, nil
}

// hiddenValue returns the value of a secret or variable, with its prefix, or "" for a template.
func hiddenValue(v schemas.HTTPValue, folder secrets.Folder) (string, error) {
	switch {
	case v.Secret != "":
		text, err := folder.Read(v.Secret)
		if err != nil {
			return "", err
		}
		if !fits(text) {
			return "", fmt.Errorf("secret %s has a value that no header can carry", v.Secret)
		}
		return v.Prefix + text, nil
	case v.Env != "":
		text := os.Getenv(v.Env)
		switch {
		case text == "":
			return "", fmt.Errorf("the environment variable %s is not set", v.Env)
		case !fits(text):
			return "", fmt.Errorf("the environment variable %s has a value that no header can carry", v.Env)
		}
		return v.Prefix + text, nil
	}
	return "", nil
}

// filled is the request of one call before it is sent.
type filled struct {
	url     *url.URL
	header  http.Header
	body    []byte   // nil: there is none
	secrets []string // values that must not appear in any text
}

// fill puts a call into the form. An error that is not a secretError is about the arguments.
func (f *form) fill(call tool.Call) (*filled, error) {
	in, err := readInput(call.Input)
	if err != nil {
		return nil, err
	}
	out := &filled{header: http.Header{"User-Agent": {"toolfleet"}}}
	address, err := f.address(in, out)
	if err != nil {
		return nil, err
	}
	if err := f.fillHeaders(in, out); err != nil {
		return nil, err
	}
	if f.Rest {
		params := url.Values{}
		if err := in.restAsParams(params); err != nil {
			return nil, err
		}
		if err := unfixed(params, address); err != nil {
			return nil, err
		}
		address = withQuery(address, params.Encode())
	}
	switch f.Body {
	case schemas.HTTPBodyInput:
		out.body = call.Input
	case schemas.HTTPBodyRest:
		out.body = rawjson.JoinMembers(in.rest())
	}
	if out.body != nil {
		out.header.Set("Content-Type", "application/json")
	}
	if out.url, err = url.Parse(address); err != nil || out.url.Host != f.host || out.url.User != nil {
		return nil, errors.New("the arguments do not fit into the address")
	}
	return out, nil
}

// address returns the URL with its path, its query and its configured parameters. Members of
// the input that no template uses are not in it.
func (f *form) address(in *input, out *filled) (string, error) {
	path, err := in.inPath(f.segments)
	if err != nil {
		return "", err
	}
	query, err := in.inQuery(f.query)
	if err != nil {
		return "", err
	}
	params := url.Values{}
	for _, p := range f.params {
		text, ok, err := f.text(p, in, out)
		if err != nil {
			return "", err
		}
		if ok {
			params.Add(p.Name, text)
		}
	}
	return withQuery(withQuery(f.Origin+path, query), params.Encode()), nil
}

// unfixed refuses parameters with a name that the address already has. If two parameters have
// the same name, some services take the last one, and compare names without case.
func unfixed(params url.Values, address string) error {
	_, query, _ := strings.Cut(address, "?")
	for fixed := range strings.FieldsFuncSeq(query, func(c rune) bool { return c == '&' || c == ';' }) {
		fixed, _, _ = strings.Cut(fixed, "=")
		if plain, err := url.QueryUnescape(fixed); err == nil {
			fixed = plain
		}
		for name := range params {
			if strings.EqualFold(name, fixed) {
				return fmt.Errorf("%s is fixed by the tool; leave it out", name)
			}
		}
	}
	return nil
}

func withQuery(address, query string) string {
	switch {
	case query == "":
		return address
	case strings.Contains(address, "?"):
		return address + "&" + query
	}
	return address + "?" + query
}

func (f *form) fillHeaders(in *input, out *filled) error {
	for _, h := range f.headers {
		text, ok, err := f.text(h, in, out)
		switch {
		case err != nil:
			return err
		case ok && !fits(text):
			return fmt.Errorf("the header %s cannot carry this value", h.Name)
		case ok:
			out.header.Set(h.Name, text)
		}
	}
	return nil
}

// text returns the text of a header or parameter. ok is false if the input has no value for
// it.
func (f *form) text(v value, in *input, out *filled) (string, bool, error) {
	if v.Secret == "" && v.Env == "" {
		return in.expand(v.template)
	}
	text, err := hiddenValue(v.HTTPValue, f.secrets)
	if err != nil {
		return "", false, &secretError{err}
	}
	bare := strings.TrimPrefix(text, v.Prefix)
	out.secrets = append(out.secrets, bare, url.QueryEscape(bare))
	return text, true, nil
}

// secretError says that a secret of the tools file is missing. The arguments are not at
// fault.
type secretError struct{ error }

func (e *secretError) Unwrap() error { return e.error }

// request returns the HTTP request. If the call may not be repeated, its body can be read
// only once, because otherwise the HTTP client might send the request again.
func (f *form) request(ctx context.Context, call tool.Call, filled *filled, repeatable bool) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, f.Method, filled.url.String(), bytes.NewReader(filled.body))
	if err != nil {
		return nil, err
	}
	if !repeatable {
		request.GetBody = nil
		request.Body = io.NopCloser(io.MultiReader(bytes.NewReader(filled.body)))
	}
	request.Header = filled.header.Clone()
	if fits(call.IdempotencyKey) && call.IdempotencyKey != "" {
		request.Header.Set("Idempotency-Key", call.IdempotencyKey)
	}
	if f.Identity {
		if err := setIdentity(request.Header, call); err != nil {
			return nil, err
		}
	}
	tracing.Inject(ctx, request.Header)
	return request, nil
}
