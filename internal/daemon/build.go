package daemon

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/term"
)

// Build identifies the build.
type Build struct {
	Version  string `json:"version"`            // "(devel)" when it was built from a checkout
	Revision string `json:"revision,omitempty"` // commit of the checkout
	Time     string `json:"time,omitempty"`     // time of the commit
	Modified bool   `json:"modified,omitempty"` // the checkout had changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ThisBuild returns the build of the running program.
func ThisBuild() Build {
	b := Build{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// Release returns the build as one word: the version, or the commit of a development build.
func (b Build) Release() string {
	if b.Version == "(devel)" && b.Revision != "" {
		return "devel-" + b.Revision[:min(12, len(b.Revision))]
	}
	return b.Version
}

// Line returns the build on one line, after the program's name.
func (b Build) Line(program string) string {
	line := program + " " + b.Version
	if b.Revision != "" {
		line += " " + b.Revision[:min(12, len(b.Revision))]
		if b.Modified {
			line += " with changes"
		}
	}
	return fmt.Sprintf("%s (%s, %s)", line, b.Go, b.Platform)
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
