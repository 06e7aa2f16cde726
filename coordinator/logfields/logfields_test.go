package logfields

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

func TestPlacesOfRefusals(t *testing.T) {
	for reason, want := range map[string]string{
		`content[1].input: is "SECRET: x"`: "WARN refused class=c place=content[1].input\n",
		`batch: provider "SECRET"`:         "WARN refused class=c place=batch\n",
		`provider "SECRET: " is not known`: "WARN refused class=c\n",
		`A batch with the id: "SECRET"`:    "WARN refused class=c\n",
	} {
		var out strings.Builder
		log := slog.New(slog.NewTextHandler(&out, nil))
		Refused(log, &messages.Refusal{Class: "c", Message: reason})
		Refused(log, &messages.Refusal{Class: messages.ClassInternal, Message: reason})
		if _, got, _ := strings.Cut(strings.ReplaceAll(out.String(), "msg=", ""), "level="); got != want {
			t.Errorf("%s: got %s, want %s", reason, got, want)
		}
	}
}
