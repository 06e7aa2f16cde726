package mcptool

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/schemas"
)

func TestPromises(t *testing.T) {
	yes, no := true, false
	schema := json.RawMessage(`{"type":"object"}`)
	for _, tt := range []struct {
		name   string
		server schemas.Server
		d      Definition
		want   schemas.Tool
		ask    bool
		fails  string
	}{
		{"not trusted", schemas.Server{Prefix: "s__"}, Definition{ReadOnly: true}, schemas.Tool{Name: "s__t", Kind: "write", OnCrash: "once"}, true, ""},
		{"trusted read", schemas.Server{Trusted: true}, Definition{ReadOnly: true}, schemas.Tool{Name: "t", Kind: "read"}, false, ""},
		{"trusted write", schemas.Server{Trusted: true}, Definition{Destructive: &no}, schemas.Tool{Name: "t", Kind: "write", OnCrash: "once"}, false, ""},
		{"destructive", schemas.Server{Trusted: true}, Definition{Destructive: &yes, Idempotent: true}, schemas.Tool{Name: "t", Kind: "write", OnCrash: "idempotent"}, true, ""},
		{"nothing said", schemas.Server{Trusted: true}, Definition{}, schemas.Tool{Name: "t", Kind: "write", OnCrash: "once"}, true, ""},
		{"override", schemas.Server{Override: map[string]schemas.Override{"t": {Kind: "read", TimeoutMS: 7, Pool: "p"}}}, Definition{},
			schemas.Tool{Name: "t", Kind: "read", TimeoutMS: 7, Pool: "p"}, false, ""},
		{"override to ask", schemas.Server{Trusted: true, Override: map[string]schemas.Override{"t": {Ask: &yes}}}, Definition{ReadOnly: true},
			schemas.Tool{Name: "t", Kind: "read"}, true, ""},
		{"program", schemas.Server{Program: true}, Definition{Meta: map[string]any{"kind": "read", "timeout": "3s", "pool": "p", "later": 1}},
			schemas.Tool{Name: "t", Kind: "read", TimeoutMS: 3000, Pool: "p"}, false, ""},
		{"program of another kind", schemas.Server{Program: true}, Definition{Meta: map[string]any{"kind": "look"}}, schemas.Tool{}, false, `kind "look"`},
		{"program with a number", schemas.Server{Program: true}, Definition{Meta: map[string]any{"kind": 1}}, schemas.Tool{}, false, "toolfleet/kind is no text"},
		{"name too long", schemas.Server{Prefix: strings.Repeat("p", 64)}, Definition{}, schemas.Tool{}, false, "want 1 to 64"},
		{"schema", schemas.Server{}, Definition{InputSchema: json.RawMessage(`{"$ref":"http://evil.example/s"}`)}, schemas.Tool{}, false, "nothing is loaded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.d.Name = "t"
			if tt.d.InputSchema == nil {
				tt.d.InputSchema = schema
			}
			got, ask, err := Promise(tt.server, tt.d)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("got %v, want %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.want, err = func() (schemas.Tool, error) { tt.want.InputSchema = schema; return tt.want.WithDefaults() }(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || ask != tt.ask {
				t.Errorf("ask %t\n%s", ask, diff)
			}
		})
	}
}

// The texts of a server about itself are cleaned of control characters before anybody reads
// them.
func TestWordsAreCleaned(t *testing.T) {
	s := open(t, testConfig(t, t.TempDir()))
	if got := served(t, s, "echo").Description; got != "Does [31mecho." {
		t.Errorf("got %q", got)
	}
	if got := clean("a\u202eb\u2066c\x07d\U000E0041e\u0085f\tg\n\xff"); got != "abcdef\tg\n\uFFFD" {
		t.Errorf("got %q", got)
	}
}
