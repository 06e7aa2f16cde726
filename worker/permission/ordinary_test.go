package permission

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolfleet/toolfleet/schemas"
)

//go:embed testdata/ordinary.txt
var ordinary string

// The policy that `toolfleet init` writes asks about at most 2 % of the ordinary, harmless
// commands of coding agents. Besides the commands of testdata/ordinary.txt, the test tries
// files of the same form from public transcripts, if they are in the folder shared beside the
// repository.
func TestOrdinaryCommandsAreNotAskedAbout(t *testing.T) {
	body, err := os.ReadFile("../../cmd/toolfleet/starter-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	policy, err := schemas.ParsePolicy("starter-policy.yaml", body)
	if err != nil {
		t.Fatal(err)
	}
	rules := mustNew(t, Config{Default: Effect(policy.Default), Layers: []Layer{{Rules: policy.Rules}}})
	files, err := filepath.Glob("../../../shared/corpora/agent-commands/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Log("../shared/corpora/agent-commands is not there: only the commands of testdata are tried")
	}
	sets := map[string]string{"testdata": ordinary}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sets[file] = string(text)
	}
	for name, text := range sets {
		lines, asked := corpus(text), 0
		for _, line := range lines {
			if d := rules.Decide(Call{Tool: bash, Input: shellInput(line)}); d.Effect != Allow {
				asked++
				t.Logf("%s: asked by %s: %q", name, d.Rule.Argument, line)
			}
		}
		if asked*50 > len(lines) {
			t.Errorf("%s: %d of %d are asked about, want 2 %% at most", name, asked, len(lines))
		}
	}
}
