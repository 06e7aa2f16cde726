package command_test

import (
	"testing"

	"github.com/alecthomas/kong"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
)

// A switch needs no value. The word after it is taken as its value only if it is a valid one.
func TestSwitches(t *testing.T) {
	for _, tc := range []struct {
		line      []string
		open, arg string
	}{
		{nil, "", ""}, {[]string{"--open"}, "true", ""}, {[]string{"--open", "true"}, "true", ""}, {[]string{"--open", "false"}, "false", ""}, {[]string{"--open=false"}, "false", ""},
		{[]string{"--open", "file"}, "true", "file"}, {[]string{"file", "--open"}, "true", "file"},
	} {
		var cli struct {
			Open command.Switch
			Arg  string `arg:"" optional:""`
		}
		parser, err := kong.New(&cli)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(tc.line); err != nil || string(cli.Open) != tc.open || cli.Arg != tc.arg {
			t.Errorf("%q: open %q, argument %q, %v", tc.line, cli.Open, cli.Arg, err)
		}
	}
}
