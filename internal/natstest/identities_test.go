package natstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// The exports of the fleet's account give agents only the subjects of their own tenant, and
// none of approvals. The server refuses a configuration file with any other import.
func TestExportsAreForTheirOwn(t *testing.T) {
	for _, wanted := range []string{
		`{ service: { account: FLEET, subject: "toolfleet.approval.decide.*.*.*.*" } }`, `{ service: { account: FLEET, subject: "toolfleet.approval.show.*.*.*.*" } }`,
		`{ service: { account: FLEET, subject: "toolfleet.approval.list.*" } }`, `{ stream: { account: FLEET, subject: "toolfleet.approval.news.*.*.*.*" } }`,
		`{ service: { account: FLEET, subject: "toolfleet.batch.globex.*.*" } }`, `{ service: { account: FLEET, subject: "toolfleet.run.globex.*.*" } }`,
		`{ service: { account: FLEET, subject: "toolfleet.get.globex.*.*" } }`, `{ service: { account: FLEET, subject: "toolfleet.control.globex.*" } }`,
		`{ stream: { account: FLEET, subject: "toolfleet.reply.*.*.*" } }`, `{ stream: { account: FLEET, subject: "toolfleet.refused.globex.*.*" } }`,
		`{ stream: { account: FLEET, subject: "toolfleet.event.globex.*.*" } }`, `{ stream: { account: FLEET, subject: "toolfleet.call.>" } }`,
	} {
		expectRefused(t, "tenants/acme.conf", "acme {", wanted)
	}
}

// expectRefused adds an import to a configuration file and checks that the server refuses it.
func expectRefused(t *testing.T, file, place, wanted string) {
	t.Helper()
	ids := NewIdentities(t)
	text, err := os.ReadFile(filepath.Join(ids.dir, file))
	at, list, found := strings.Cut(string(text), place)
	before, after, listed := strings.Cut(list, "imports: [")
	if err != nil || !found || !listed {
		t.Fatalf("%s has no list of imports in %s: %v", file, place, err)
	}
	if err := os.WriteFile(filepath.Join(ids.dir, file), []byte(at+place+before+"imports: [\n"+wanted+after), 0o600); err != nil {
		t.Fatal(err)
	}
	o := devserver.Options{DataDir: t.TempDir()}
	ids.Option(&o)
	srv, err := devserver.Start(o)
	if err == nil {
		srv.Shutdown()
	}
	if err == nil || !strings.Contains(err.Error(), "not authorized") {
		t.Errorf("%s imports %s: %v", file, wanted, err)
	}
}

// The exports give workers what they need of the streams and nothing else. No other account
// gets even this.
func TestExportsToWorkers(t *testing.T) {
	for _, subject := range []string{
		"$JS.API.>", "$JS.API.STREAM.PURGE.TOOLFLEET_DEAD", "$JS.API.STREAM.DELETE.*", "$JS.API.STREAM.CREATE.TOOLFLEET_JOBS", "$JS.API.STREAM.UPDATE.TOOLFLEET_CALLS",
		"$JS.API.STREAM.MSG.DELETE.TOOLFLEET_BATCHES", "$JS.API.CONSUMER.CREATE.TOOLFLEET_JOBS.*", "$JS.API.CONSUMER.MSG.NEXT.TOOLFLEET_BATCHES.coordinators", "$JS.ACK.TOOLFLEET_BATCHES.>",
		"$JS.API.DIRECT.GET.TOOLFLEET_AUDIT", "toolfleet.batch.*.*.*", "toolfleet.read.>", "toolfleet.write.>", "toolfleet.plan.>", "toolfleet.final.>", "toolfleet.ctl.>", "toolfleet.audit.>",
		"toolfleet.approval.decide.*.*.*.*", "$KV.TOOLFLEET_keys.audit", "$KV.TOOLFLEET_approvals.>",
	} {
		expectRefused(t, "identities.conf", "  WORKERS {", `{ service: { account: FLEET, subject: "`+subject+`" } }`)
	}
	for _, subject := range []string{"$JS.API.STREAM.INFO.*", "$KV.TOOLFLEET_tools.*", "toolfleet.call.>", "$JS.API.DIRECT.GET.TOOLFLEET_CALLS"} {
		expectRefused(t, "tenants/acme.conf", "acme {", `{ service: { account: FLEET, subject: "`+subject+`" } }`)
	}
}
