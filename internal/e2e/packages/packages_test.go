package packages

import (
	"os/exec"
	"strings"
	"testing"
)

// node returns the path of Node 20 or later. It skips the test if there is none.
func node(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node: the package for TypeScript is not tried")
	}
	if out, err := exec.Command(path, "-p", "+process.versions.node.split('.')[0] >= 20").Output(); err != nil || strings.TrimSpace(string(out)) != "true" {
		t.Skip("node is older than 20: the package for TypeScript is not tried")
	}
	return path
}

// python returns the path of Python 3.11 or later. It skips the test if there is none.
func python(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		path, err := exec.LookPath(name)
		if err == nil && exec.Command(path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))").Run() == nil {
			return path
		}
	}
	t.Skip("no python3 from 3.11 on: the package for Python is not tried")
	return ""
}
