package packages

import (
	"testing"

	"github.com/toolfleet/toolfleet/worker/tool/mcptool/programtest"
)

// Programs that use our tool libraries pass the common tests of long-lived programs.
func TestPrograms(t *testing.T) {
	t.Run("typescript", func(t *testing.T) { programtest.Run(t, node(t), "../../../clients/typescript/test/program.js") })
	t.Run("python", func(t *testing.T) { programtest.Run(t, python(t), "../../../clients/python/tests/program.py") })
}
