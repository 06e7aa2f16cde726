package httptool

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// Here the probe asks a service, and the run that it asks about is Go code in this process.
func TestProbeContract(t *testing.T) {
	tooltest.RunProbe(t, func(t *testing.T, dir string) (tool.Runner, string) {
		p := serve(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
			answer := "not_done"
			if tooltest.Applied(dir, r.Header.Get("Toolfleet-Idempotency-Key")) {
				answer = "done"
			}
			_, _ = io.WriteString(w, answer)
		})
		run := func(_ context.Context, call tool.Call) (tool.Output, error) {
			return tool.Text("applied"), tooltest.ApplyOnce(dir, call.IdempotencyKey)
		}
		return tool.NewProber(run, p.Probe), `{}`
	})
}
