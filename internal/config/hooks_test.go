package config

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// The policy file can have hooks that are a program, a service, or a program that keeps
// running. A hook can have one of them before the tool and another one after it.
func TestHooksOfEachKind(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	token := ""
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token = r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`{"decision":"block","reason":"the service says so"}`))
	}))
	defer service.Close()
	secrets := t.TempDir()
	if err := os.WriteFile(filepath.Join(secrets, "token"), []byte("a-value"), 0o600); err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Abs("../../examples/hooks")
	if err != nil {
		t.Fatal(err)
	}
	stays := filepath.Join(examples, "stays.py")
	p := policed(t, `hooks:
- {name: one, match: one, after: {command: [sh, -c, "echo 'the program says so' >&2; exit 2"]}}
- {name: two, match: two, before: {http: {url: "`+service.URL+`", loopback: true, headers: {Authorization: {secret: token}}}}}
- {name: three, match: three, budget: 60s, before: {program: {command: ["`+python+`", "-B", "`+stays+`"]}}, after: {http: {url: "`+service.URL+`", loopback: true}}}
`, "secrets: "+secrets+"\n", schemas.Rules{})
	if diff := cmp.Diff([][]string{{"sh", "-c", "echo 'the program says so' >&2; exit 2"}, {python, "-B", stays}}, p.hookCommands()); diff != "" {
		t.Errorf("the commands of hooks (-want +got):\n%s", diff)
	}
	set, err := p.Hooks("1", worker.Place{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	defer func() {
		cancel()
		<-end
	}()
	go func() {
		defer close(end)
		set.Run(ctx)
	}()
	done := hook.Done{Status: "ok"}
	if got := set.After(t.Context(), hook.Call{Tool: "one", Input: []byte(`{}`)}, done, nil); !cmp.Equal(got.Context, []string{"the program says so"}) {
		t.Errorf("one: got %+v", got)
	}
	if got := set.Before(t.Context(), hook.Call{Tool: "two", Input: []byte(`{}`)}, nil); got.Opinion != hook.Deny || got.Reason != "the service says so" || token != "a-value" {
		t.Errorf("two: got %+v, with the token %q", got, token)
	}
	three := hook.Call{Tool: "three", Input: []byte(`{"email":"ANN@example.com"}`)}
	if got := set.Before(t.Context(), three, nil); !strings.Contains(string(got.Input), "ann@example.com") {
		t.Errorf("three, before: got %+v", got)
	}
	if got := set.After(t.Context(), three, done, nil); !cmp.Equal(got.Context, []string{"the service says so"}) {
		t.Errorf("three, after: got %+v", got)
	}
}

// The secret of a hook is missing: the worker does not start.
func TestHookWithoutItsSecret(t *testing.T) {
	p := policed(t, `hooks: [{name: a, before: {http: {url: "https://example.com", headers: {Authorization: {secret: gone}}}}}]`,
		"secrets: "+t.TempDir()+"\n", schemas.Rules{})
	if _, err := p.Hooks("1", worker.Place{}, nil); err == nil || !strings.Contains(err.Error(), `hook "a"`) || !strings.Contains(err.Error(), "secret gone") {
		t.Errorf("got %v", err)
	}
}
