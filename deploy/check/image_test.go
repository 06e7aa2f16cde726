package check

import (
	"bytes"
	"debug/elf"
	"regexp"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func TestDockerfile(t *testing.T) {
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":            {},
		"unknown instruction": {source{"Dockerfile": {"ENTRYPOINT", "ENTRYPONT"}}, "ENTRYPONT"},
		"unknown flag":        {source{"Dockerfile": {"--from=build", "--form=build"}}, "form"},
		"floating base":       {source{"Dockerfile": {"debian:12.12-slim", "debian:stable-slim"}}, "names no version"},
		"base with a system":  {source{"Dockerfile": {"FROM scratch", "FROM debian:12.12"}}, "want scratch"},
		"root":                {source{"Dockerfile": {"USER 65532:65532", "USER 0"}}, "user 0"},
		"user by name":        {source{"Dockerfile": {"USER 65532:65532", "USER nobody"}}, "user nobody"},
		"no certificates":     {source{"Dockerfile": {"ca-certificates.crt", "hosts"}}, "certificates"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, dockerfileProblems(t, tc.edit), tc.want) })
	}
}

// TestStaticBinary runs the build command of the Dockerfile. The binary has to start in an empty
// image.
func TestStaticBinary(t *testing.T) {
	f, err := elf.Open(binary(t))
	if err != nil {
		t.Skipf("not built as ELF: %v", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary asks for a dynamic loader, which a scratch image has not")
		}
	}
}

func parseDockerfile(t *testing.T, edits source) ([]instructions.Stage, error) {
	tree, err := parser.Parse(bytes.NewReader(edits.read(t, "Dockerfile")))
	if err != nil {
		return nil, err
	}
	stages, _, err := instructions.Parse(tree.AST, nil)
	return stages, err
}

// stages returns the names of the Dockerfile's stages.
func stages(t *testing.T) (names []string) {
	t.Helper()
	all, err := parseDockerfile(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names
}

func dockerfileProblems(t *testing.T, edits source) (found []string) {
	all, err := parseDockerfile(t, edits)
	if err != nil {
		return []string{err.Error()}
	}
	for _, s := range all {
		if s.BaseName != "scratch" && !pinned(s.BaseName) {
			found = append(found, "base "+s.BaseName+" names no version")
		}
	}
	last := all[len(all)-1]
	if last.BaseName != "scratch" {
		found = append(found, "the last stage is from "+last.BaseName+", want scratch")
	}
	user, certificates := "", false
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.CopyCommand:
			certificates = certificates || len(c.SourcePaths) == 1 && c.SourcePaths[0] == "/etc/ssl/certs/ca-certificates.crt"
		}
	}
	// Kubernetes needs a number to see that an image does not run as root.
	if !regexp.MustCompile(`^[1-9][0-9]*(:[1-9][0-9]*)?$`).MatchString(user) {
		found = append(found, "user "+user+": want the number of one who is not root")
	}
	if !certificates {
		found = append(found, "no certificates: TLS to NATS would trust nobody")
	}
	return found
}
