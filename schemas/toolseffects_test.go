package schemas

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseCheckAndRetry(t *testing.T) {
	type effects struct {
		Name  string
		Check *Check
		Retry Retry
	}
	var got []effects
	digests := map[string]bool{}
	for _, e := range parseFile(t, "tools-effects.yaml").Tools {
		got = append(got, effects{e.Name, e.Check, e.Retry})
		digests[e.Digest] = true
	}
	want := []effects{
		{"transfer", &Check{Command: []string{"./transfer", "--probe"}, Timeout: 2 * time.Second}, Retry{3, 250, 60_000}},
		{"book", &Check{Timeout: 10 * time.Second, HTTP: &CheckHTTP{
			URL: "https://bookings.example.com/probe?full=1", Method: "POST",
			Headers: []CheckHeader{{"Authorization", "BOOKINGS_TOKEN"}, {"x-account", "BOOKINGS_ACCOUNT"}},
		}}, Retry{}},
		{"ask", nil, Retry{2, 500, 10_000}},
		{"never_again", nil, Retry{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// How a tool is probed is not part of its promise, and neither is how it is run.
func TestCheckIsNotPartOfTheDigest(t *testing.T) {
	digest := func(check string) string {
		file, err := ParseToolsFile("f", []byte(toolWith("on_crash: checkable", "check: "+check)))
		if err != nil {
			t.Fatal(err)
		}
		return file.Tools[0].Digest
	}
	if a, b := digest("{command: [./a]}"), digest("{http: {url: http://b}}"); a != b {
		t.Errorf("digests %s and %s", a, b)
	}
}

func TestParseCheckAndRetryNameEveryMistake(t *testing.T) {
	checkedBy := func(check string) string { return toolWith("on_crash: checkable", "check: "+check) }
	const once = "retry: a write with on_crash: once is never run again, because a run that failed may have had its effect; " +
		"only reads, computes and writes with on_crash: idempotent or checkable may be"
	for _, tt := range []mistakesCase{
		{"checkable without check", toolWith("on_crash: checkable"), false, []string{
			"f:5:3: on_crash: checkable needs a probe to ask: write check: {command: [./probe]}"}},
		{"check without on_crash", toolWith("check: {command: [./probe]}"), false, []string{
			"f:5:3: check is for on_crash: checkable; nothing else asks it"}},
		{"check of an idempotent write", toolWith("on_crash: idempotent", "check: {command: [./probe]}"), false, []string{
			"f:6:3: check is for on_crash: checkable; nothing else asks it"}},
		{"checkable builtin", "tools:\n- name: x\n  builtin: noop\n  on_crash: checkable\n  check: {command: [./probe]}\n", false, []string{
			"f:4:3: on_crash: checkable is for exec; of a builtin use idempotent or once"}},
		{"checkable read", "tools:\n- name: x\n  input_schema: {type: object}\n  kind: read\n  exec: {command: [./x]}\n  on_crash: checkable\n  check: {command: [./probe]}\n", true, []string{
			"f:6:3: on_crash is for writes; a read may always be run again"}},
		{"check is text", checkedBy("./probe"), false, []string{"f:6:10: " + wantCheck + ", got text"}},
		{"check is empty", checkedBy("{}"), false, []string{"f:6:10: command is missing; " + wantCheck}},
		{"two checks", checkedBy("{command: [./p], http: {url: http://x}}"), false, []string{"f:6:10: a check is a command or http, not both"}},
		{"unknown key of a check", checkedBy("{command: [./p], exec: [./p]}"), false, []string{`f:6:27: unknown key "exec"; ` + wantCheck}},
		{"no probe", checkedBy("{command: []}"), false, []string{"f:6:20: command: the program is missing"}},
		{"timeout of a check", checkedBy("{command: [./p], timeout: 0s}"), true, []string{"f:6:36: timeout: want at least 1ms"}},
		{"http is text", checkedBy("{http: http://x}"), false, []string{"f:6:17: " + wantHTTP + ", got text"}},
		{"no url", checkedBy("{http: {method: GET}}"), false, []string{"f:6:17: url is missing; " + wantHTTP}},
		{"url without scheme", checkedBy("{http: {url: example.com/probe}}"), false, []string{"f:6:23: url: want an address such as https://example.com/probe"}},
		{"url of a file", checkedBy("{http: {url: 'file:///etc/passwd'}}"), false, []string{"f:6:23: url: want an address such as https://example.com/probe"}},
		{"url without host", checkedBy("{http: {url: 'http://:80/'}}"), true, []string{"f:6:23: url: want an address such as https://example.com/probe"}},
		{"url with a password", checkedBy("{http: {url: 'http://me:secret@x/'}}"), true, []string{
			"f:6:23: url: a password is not written here; name its variable under headers"}},
		{"method", checkedBy("{http: {url: http://x, method: PUT}}"), false, []string{`f:6:41: method: "PUT" is not one of GET, POST`}},
		{"headers are a list", checkedBy("{http: {url: http://x, headers: [a]}}"), false, []string{"f:6:42: " + wantHeader + ", got a list"}},
		{"header is text", checkedBy("{http: {url: http://x, headers: {a: secret}}}"), false, []string{"f:6:46: " + wantHeader + ", got text"}},
		{"header of nothing", checkedBy("{http: {url: http://x, headers: {a: {}}}}"), false, []string{"f:6:46: env is missing; " + wantHeader}},
		{"env of a header", checkedBy("{http: {url: http://x, headers: {a: {env: a b}}}}"), false, []string{
			`f:6:52: env: "a b" is not the name of an environment variable`}},
		{"header names", checkedBy("{http: {url: http://x, headers: {a b: {env: A}, Toolfleet-Fence: {env: A}, HOST: {env: A}, c: {env: A}, C: {env: A}}}}"), true, []string{
			`f:6:43: headers: "a b" is no name of a header`, "f:6:58: headers: Toolfleet-Fence is set by toolfleet itself",
			"f:6:85: headers: HOST is set by toolfleet itself", "f:6:114: headers: C is there twice"}},

		{"retry is a number", toolWith("kind: read", "retry: 3"), false, []string{"f:6:10: " + wantRetry + ", got a number"}},
		{"retry without attempts", toolWith("kind: read", "retry: {backoff: 1s}"), false, []string{"f:6:10: attempts is missing; " + wantRetry}},
		{"unknown key of a retry", toolWith("kind: read", "retry: {attempts: 2, jitter: 1}"), false, []string{`f:6:24: unknown key "jitter"; ` + wantRetry}},
		{"no attempts", toolWith("kind: read", "retry: {attempts: 0}"), false, []string{"f:6:21: attempts: want a number from 1 to 10, the first run included"}},
		{"too many attempts", toolWith("kind: read", "retry:", "  backoff: 1s", "  attempts: 11"), false, []string{
			"f:8:15: attempts: want a number from 1 to 10, the first run included"}},
		{"attempts are text", toolWith("kind: read", `retry: {attempts: "3"}`), false, []string{"f:6:21: attempts: want a number from 1 to 10, the first run included"}},
		{"backoff", toolWith("kind: read", "retry: {attempts: 2, backoff: 5, max_backoff: 1h1ms}"), false, []string{
			`f:6:33: backoff: want a duration such as "5s", "500ms" or "2m", got a number`, "f:6:49: max_backoff: want at most 1h"}},
		{"backoff is longer", toolWith("kind: read", "retry: {attempts: 2, backoff: 2s, max_backoff: 1s}"), true, []string{
			"f:6:10: retry: max_backoff is shorter than backoff"}},
		{"retry of a write", toolWith("retry: {attempts: 2}"), true, []string{"f:5:3: " + once}},
		{"retry of a once write", toolWith("on_crash: once", "retry: {attempts: 2}"), true, []string{"f:6:3: " + once}},
	} {
		t.Run(tt.name, tt.check)
	}
}
