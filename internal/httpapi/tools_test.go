package httpapi_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

// Every provider gets the definitions in its own form, with the same bytes each time. A client
// that has them already gets the answer that they are unchanged.
func TestTheToolsOfAFleet(t *testing.T) {
	f := newFleet(t)
	digests := map[string]bool{}
	for _, provider := range append(messages.Providers, "") {
		path := "/v1/tools?provider=" + string(provider)
		a := f.do("GET", path, "")
		if a.Status != http.StatusOK {
			t.Fatalf("%s: %d %s", provider, a.Status, a.Body)
		}
		list := decode[messages.ToolList](t, a.Body)
		for name, offered := range map[string]bool{"look": true, "note": true, "refund": true, "secret": false} {
			if strings.Contains(string(list.Tools), `"`+name+`"`) != offered {
				t.Errorf("%s: %s is offered: %t, want %t", provider, name, !offered, offered)
			}
		}
		if again := f.do("GET", path, ""); !bytes.Equal(again.Body, a.Body) || again.Header.Get("ETag") != `"`+list.Digest+`"` {
			t.Errorf("%s: got %s, then %s", provider, a.Body, again.Body)
		}
		if known := f.do("GET", path, "", "If-None-Match", a.Header.Get("ETag")); known.Status != http.StatusNotModified || len(known.Body) > 0 {
			t.Errorf("%s: %d %s", provider, known.Status, known.Body)
		}
		digests[list.Digest] = true
	}
	if len(digests) != 1 {
		t.Errorf("the same definitions have the digests %v", digests)
	}
	some := f.do("GET", "/v1/tools?provider=anthropic&names=look,nothing&cache=1", "")
	if list := decode[messages.ToolList](t, some.Body); !strings.Contains(string(list.Tools), "cache_control") || strings.Contains(string(list.Tools), "note") || digests[list.Digest] {
		t.Errorf("got %s", some.Body)
	}
	for query, code := range map[string]string{"provider=openai": "unsupported_provider", "provider=anthropic&strict=very": "malformed_message"} {
		if a := f.do("GET", "/v1/tools?"+query, ""); a.Status != http.StatusUnprocessableEntity || a.code() != code {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
}
