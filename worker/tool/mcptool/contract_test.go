package mcptool

import (
	"testing"

	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// program returns a Make for the tool of the test server that has this name.
func program(name string) tooltest.Make {
	return func(t *testing.T, dir string) (tool.Runner, string) {
		return served(t, open(t, testConfig(t, dir)), name).Runner, `{"n":1}`
	}
}

func TestContract(t *testing.T) {
	tooltest.Run(t, tooltest.Runner{
		Echo: program("echo"), Fail: program("fail"), FailForNow: program("busy"), Wait: program("wait"), Report: program("report"),
		Describe: program("describe"), Apply: program("apply"), Checkable: program("checkable"),
		Cannot: map[string]string{
			"Flood":   "a message has 16 MiB at most, and is then an error; TestLargeOutput and TestEndlessOutput",
			"BadText": "the protocol is JSON",
			"Crash":   "what a crash means depends on the tool; TestAProcessThatDies",
		},
	})
}
