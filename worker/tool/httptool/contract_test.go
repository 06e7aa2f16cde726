package httptool

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// The probe asks a service, and the tool itself is Go code in this process.
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

// service returns a Make of a tool that sends its calls to a handler.
func service(answer func(dir string) http.HandlerFunc) tooltest.Make {
	return func(t *testing.T, dir string) (tool.Runner, string) {
		return open(t, Config{Request: schemas.HTTP{Method: "POST", Body: schemas.HTTPBodyInput, Identity: true}, Timeout: time.Minute}, answer(dir)), `{"n":1}`
	}
}

// same returns a function that gives the same handler for every folder.
func same(answer http.HandlerFunc) func(string) http.HandlerFunc {
	return func(string) http.HandlerFunc { return answer }
}

func TestContract(t *testing.T) {
	apply := func(dir string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := tooltest.ApplyOnce(dir, r.Header.Get("Idempotency-Key")); err != nil {
				t.Error(err)
			}
		}
	}
	tooltest.Run(t, tooltest.Runner{
		Echo:       service(same(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })),
		Fail:       service(same(says(http.StatusNotFound, tooltest.Failure))),
		FailForNow: service(same(says(http.StatusNotFound, `{"error":"`+tooltest.Failure+`","retryable":true}`))),
		FailCode:   "http_404",
		Describe: service(same(func(w http.ResponseWriter, r *http.Request) {
			for _, name := range []string{"Session", "Batch", "Call-Id", "Index", "Attempt", "Idempotency-Key", "Fence"} {
				_, _ = io.WriteString(w, r.Header.Get("Toolfleet-"+name)+"\n")
			}
		})),
		Apply:   service(apply),
		BadText: service(same(says(http.StatusOK, tooltest.BadText))),
		Checkable: func(t *testing.T, dir string) (tool.Runner, string) {
			run, input := service(apply)(t, dir)
			p := serve(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
				answer := "not_done"
				if tooltest.Applied(dir, r.Header.Get("Toolfleet-Idempotency-Key")) {
					answer = "done"
				}
				_, _ = io.WriteString(w, answer)
			})
			return tool.NewProber(run.Run, p.Probe), input
		},
		Cannot: map[string]string{
			"Wait":   "a request has no progress by which the test knows that it runs; TestARequestEndsWithItsCall",
			"Report": "a request has no progress",
			"Flood":  "an answer over the limit is an error; TestAnswers",
			"Crash":  "whether a request that broke off was applied depends on the tool; TestBrokenRequests",
		},
	})
}
