package httptool

import (
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// For any value, either the request is refused, or the value is at its placeholders in the
// request and nowhere else.
func FuzzAValueStaysInItsPlace(f *testing.F) {
	for _, value := range []string{"7", "..", "a/../b", "?x=1#y", "%2e%2e%2f", "@evil.com", "a\r\nb: c", "é\x00", "&x=2", "\\..\\", ";", "//"} {
		f.Add(value)
	}
	made, err := newForm(schemas.HTTP{
		Origin: "https://example.com:8443", Path: "/a/{id}/b", Query: "q={id}", Headers: []schemas.HTTPValue{{Name: "X-Id", Template: "{id}"}},
	}, "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if !utf8.ValidString(value) {
			t.Skip("an input is JSON")
		}
		in := rawjson.Quote(value)
		request, err := made.fill(tool.Call{Input: []byte(`{"id":` + string(in) + `}`)})
		if err != nil {
			return
		}
		u := request.url
		segments := strings.Split(u.EscapedPath(), "/")
		if u.Scheme != "https" || u.Host != "example.com:8443" || u.User != nil || u.Fragment != "" {
			t.Errorf("%q: the address is %s", value, u)
		}
		if len(segments) != 4 || segments[1] != "a" || segments[3] != "b" || u.Path != "/a/"+value+"/b" {
			t.Errorf("%q: the path is %s", value, u.EscapedPath())
		}
		if clean := path.Clean(u.Path); !strings.HasPrefix(clean, "/a/") || !strings.HasSuffix(clean, "/b") {
			t.Errorf("%q: a server that decodes the path reads %s", value, clean)
		}
		if query := u.Query(); len(query) != 1 || query.Get("q") != value {
			t.Errorf("%q: the query is %s", value, u.RawQuery)
		}
		if got := request.header.Get("X-Id"); got != value || strings.ContainsAny(got, "\r\n\x00") {
			t.Errorf("%q: the header is %q", value, got)
		}
	})
}
