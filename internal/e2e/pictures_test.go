package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The pictures of the documentation use no CSS variables: some viewers do not know them and
// draw everything black.
func TestPicturesHaveTheirColours(t *testing.T) {
	pictures, err := filepath.Glob("../../docs/*.svg")
	if err != nil || len(pictures) == 0 {
		t.Fatalf("pictures of docs: %q, %v", pictures, err)
	}
	for _, path := range pictures {
		picture, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(picture, []byte("var(")) {
			t.Errorf("%s takes a colour from a CSS variable; write the colour itself", path)
		}
	}
}
