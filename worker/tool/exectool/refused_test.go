package exectool

import (
	"os"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/messages"
)

// The sandbox refuses something to a program, and the program goes on: its output stays as it
// is, and a progress report has the hint.
func TestAProgramThatGoesOnAfterARefusal(t *testing.T) {
	if m := sandbox.Local(); m.Landlock == 0 && !m.Namespaces.Mount {
		t.Skip("this machine cannot refuse a file")
	}
	dir := t.TempDir()
	box, err := sandbox.New(sandbox.Policy{Read: sandbox.SystemPaths("", os.Getenv("PATH")), Write: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := New(Config{Command: []string{"sh", "-c", "echo x > " + t.TempDir() + "/file; echo 5"}, Dir: dir, Sandbox: box})
	if err != nil {
		t.Fatal(err)
	}
	var last string
	c := call(`{}`)
	c.Progress = func(p messages.Progress) { last = p.Text }
	out, err := made.Run(t.Context(), c)
	if err != nil || string(out.Value) != "5" || !strings.HasPrefix(last, "[This ran in a sandbox") {
		t.Errorf("got %s, %v; the last progress is %q", out.Value, err, last)
	}
}
