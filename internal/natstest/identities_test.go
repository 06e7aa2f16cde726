package natstest

import (
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// The exports give an account of agents its own tenant's subjects only, and none about approvals.
// The server refuses a configuration file that imports anything else.
func TestExportsAreForTheirOwn(t *testing.T) {
	for _, wanted := range []string{
		`{ service: { account: FLEET, subject: "toolfleet.approval.decide.*.*.*.*" } }`, `{ service: { account: FLEET, subject: "toolfleet.approval.show.*.*.*.*" } }`,
		`{ service: { account: FLEET, subject: "toolfleet.approval.list.*" } }`, `{ stream: { account: FLEET, subject: "toolfleet.approval.news.*.*.*.*" } }`,
		`{ service: { account: FLEET, subject: "toolfleet.batch.globex.*.*" } }`, `{ service: { account: FLEET, subject: "toolfleet.run.globex.*.*" } }`,
		`{ service: { account: FLEET, subject: "toolfleet.get.globex.*.*" } }`, `{ service: { account: FLEET, subject: "toolfleet.control.globex.*" } }`,
		`{ stream: { account: FLEET, subject: "toolfleet.reply.*.*.*" } }`, `{ stream: { account: FLEET, subject: "toolfleet.refused.globex.*.*" } }`,
		`{ stream: { account: FLEET, subject: "toolfleet.event.globex.*.*" } }`, `{ stream: { account: FLEET, subject: "toolfleet.call.>" } }`,
	} {
		ids := NewIdentities(t)
		ids.edit("tenants/acme.conf", "tenants/acme.conf", "imports: [", "imports: [\n"+wanted)
		o := devserver.Options{DataDir: t.TempDir()}
		ids.Option(&o)
		srv, err := devserver.Start(o)
		if err == nil {
			srv.Shutdown()
		}
		if err == nil || !strings.Contains(err.Error(), "not authorized") {
			t.Errorf("acme imports %s: %v", wanted, err)
		}
	}
}
