package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The binary accepts the settings and tools files that it is started with, and refuses a copy with
// a misspelt key.
func TestSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		file    string
		edit    edit
		command []string // the file's path is appended
	}{
		"kustomize settings": {base + "/toolfleet.yaml", edit{"queue_timeout", "queue_timeuot"}, []string{"config", "print", "--config"}},
		"kustomize tools":    {base + "/tools.yaml", edit{"kind:", "kindd:"}, []string{"plan", "-", "--provider", "canonical", "--tools"}},
		"compose tools":      {"deploy/compose/tools.yaml", edit{"kind:", "kindd:"}, []string{"plan", "-", "--provider", "canonical", "--tools"}},
	} {
		t.Run(name, func(t *testing.T) {
			bin := binary(t)
			if out, err := accepts(t, bin, tc.command, source(nil).read(t, tc.file)); err != nil {
				t.Errorf("%s is refused: %v\n%s", tc.file, err, out)
			}
			if out, err := accepts(t, bin, tc.command, source{tc.file: tc.edit}.read(t, tc.file)); err == nil {
				t.Errorf("%s with %q is accepted:\n%s", tc.file, tc.edit.new, out)
			}
		})
	}
}

func accepts(t *testing.T, bin string, command []string, content []byte) ([]byte, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, append(command[:len(command):len(command)], file)...)
	cmd.Stdin = strings.NewReader(`{"calls":[]}`)
	return cmd.CombinedOutput()
}
