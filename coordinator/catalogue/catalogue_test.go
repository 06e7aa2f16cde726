package catalogue_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/catalogue"
	"github.com/toolfleet/toolfleet/schemas"
)

func definition(name, schema string) schemas.Tool {
	return schemas.Tool{Name: name, InputSchema: json.RawMessage(schema)}
}

func catalog(t *testing.T, tools ...schemas.Tool) schemas.Catalog {
	t.Helper()
	c, err := schemas.NewCatalog(tools...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var (
	look = definition("look", `{"type":"object","properties":{"a":{},"b":{}}}`)
	pay  = definition("pay", `{"type":"object"}`)
)

func TestDigest(t *testing.T) {
	body, digest := catalogue.Encode(catalog(t, pay, look))
	// Agents keep digests of catalogues for days. So the bytes of a catalogue may change only
	// for a good reason.
	if want := "046f79d1ac3368413088be2472adb5fdda729886e9eb672a8e02fe0fe6ca68f6"; digest != want {
		t.Errorf("digest %s, want %s; the body is %s", digest, want, body)
	}
	respelt := definition("look", ` {"properties":{"b":{},"a":{}}, "type":"object"}`)
	if got := catalogue.Digest(catalog(t, respelt, pay)); got != digest {
		t.Error("the order of tools, or the spelling of a schema, changes the digest")
	}
	for name, other := range map[string]schemas.Catalog{
		"fewer tools":        catalog(t, look),
		"another definition": catalog(t, definition("look", `{"type":"object","properties":{"a":{}}}`), pay),
		"no tools":           catalog(t),
	} {
		if catalogue.Digest(other) == digest {
			t.Errorf("%s: the same digest", name)
		}
	}
}

func TestDecode(t *testing.T) {
	want := catalog(t, look, pay)
	body, _ := catalogue.Encode(want)
	got, err := catalogue.Decode(body)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Tools(), got.Tools()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	forged := strings.Replace(string(body), `"kind":"write"`, `"kind":"read","timeout_ms":1`, 1)
	forged = strings.Replace(forged, `,"timeout_ms":30000`, "", 1)
	if got, err = catalogue.Decode([]byte(forged)); err != nil {
		t.Fatal(err)
	}
	for _, tool := range got.Tools() {
		own, _ := want.Lookup(tool.Name)
		if tool.Kind != own.Kind && tool.Digest == own.Digest {
			t.Error("a forged definition has the digest of the true one")
		}
	}
	for name, bad := range map[string]string{
		"no JSON":         `{`,
		"no object":       `[]`,
		"another version": `{"v":2,"tools":[]}`,
		"a result":        `{"output":"x"}`,
		"one name twice":  `{"v":1,"tools":[{"name":"a"},{"name":"a","kind":"read"}]}`,
		"a bad name":      `{"v":1,"tools":[{"name":"a b"}]}`,
		"too large":       `"` + strings.Repeat("x", catalogue.MaxBytes) + `"`,
	} {
		if _, err := catalogue.Decode([]byte(bad)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"v":1,"tools":[{"name":"a","input_schema":{"type":"object"}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		tools, err := catalogue.Decode(body)
		if err != nil {
			return
		}
		once, digest := catalogue.Encode(tools)
		again, err := catalogue.Decode(once)
		if err != nil {
			t.Fatalf("its own encoding: %v", err)
		}
		if catalogue.Digest(again) != digest {
			t.Error("decoding and encoding again gives another digest")
		}
	})
}
