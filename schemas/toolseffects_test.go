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
			Headers: []CheckHeader{{Name: "Authorization", Env: "BOOKINGS_TOKEN"}, {Name: "x-account", Env: "BOOKINGS_ACCOUNT"}},
		}}, Retry{}},
		{"ask", nil, Retry{2, 500, 10_000}},
		{"never_again", nil, Retry{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The digest covers neither how a tool is probed nor how it is run.
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
	const once = ": a write with on_crash: once is never run again, because a run that failed may have had its effect; " +
		"only reads, computes and writes with on_crash: idempotent or checkable may be"
	for _, tt := range []mistakesCase{
		{"checkable without check", toolWith("on_crash: checkable"), false, []string{
			"f:5:3: tools[0].on_crash: checkable needs a probe to ask: write check: {command: [./probe]}"}},
		{"check without on_crash", toolWith("check: {command: [./probe]}"), false, []string{"f:5:3: tools[0].check: this is for on_crash: checkable; nothing else asks it"}},
		{"check of an idempotent write", toolWith("on_crash: idempotent", "check: {command: [./probe]}"), false, []string{"f:6:3: tools[0].check: this is for on_crash: checkable; nothing else asks it"}},
		{"checkable builtin", "tools:\n- name: x\n  builtin: noop\n  on_crash: checkable\n  check: {command: [./probe]}\n", false, []string{
			"f:4:3: tools[0].on_crash: checkable is for exec and http; of a builtin use idempotent or once"}},
		{"checkable read", "tools:\n- name: x\n  input_schema: {type: object}\n  kind: read\n  exec: {command: [./x]}\n  on_crash: checkable\n  check: {command: [./probe]}\n", true, []string{"f:6:3: tools[0].on_crash: this is for writes; a read may always be run again"}},
		{"check is text", checkedBy("./probe"), false, []string{
			"f:6:10: tools[0].check: want one probe: {command: [./probe]} or {http: {url: https://...}}, got text"}},
		{"check is empty", checkedBy("{}"), false, []string{
			"f:6:10: tools[0].check: want one probe: {command: [./probe]} or {http: {url: https://...}}"}},
		{"two checks", checkedBy("{command: [./p], http: {url: http://x}}"), false, []string{
			"f:6:10: tools[0].check: want one probe: {command: [./probe]} or {http: {url: https://...}}"}},
		{"unknown key of a check", checkedBy("{command: [./p], exec: [./p]}"), false, []string{
			`f:6:27: tools[0].check: unknown key "exec"; the keys here: command, http, timeout`}},
		{"no probe", checkedBy("{command: []}"), false, []string{
			`f:6:20: tools[0].check.command: want a list that begins with the program, such as [./program, argument] or [sh, -c, "a | b"]`}},
		{"timeout of a check", checkedBy("{command: [./p], timeout: 0s}"), true, []string{"f:6:36: tools[0].check.timeout: want at least 1ms"}},
		{"http is text", checkedBy("{http: http://x}"), false, []string{
			"f:6:17: tools[0].check.http: want {url: https://..., method: GET, headers: {Authorization: {env: TOKEN}}}, got text"}},
		{"no url", checkedBy("{http: {method: GET}}"), false, []string{
			"f:6:17: tools[0].check.http: url is missing; want {url: https://..., method: GET, headers: {Authorization: {env: TOKEN}}}"}},
		{"url without scheme", checkedBy("{http: {url: example.com/probe}}"), false, []string{
			"f:6:23: tools[0].check.http.url: want an address such as https://example.com/probe"}},
		{"url of a file", checkedBy("{http: {url: 'file:///etc/passwd'}}"), false, []string{
			"f:6:23: tools[0].check.http.url: want an address such as https://example.com/probe"}},
		{"url without host", checkedBy("{http: {url: 'http://:80/'}}"), true, []string{
			"f:6:23: tools[0].check.http.url: want an address such as https://example.com/probe"}},
		{"url with a password", checkedBy("{http: {url: 'http://me:secret@x/'}}"), true, []string{
			"f:6:23: tools[0].check.http.url: a password is not written here; name its variable under headers"}},
		{"method", checkedBy("{http: {url: http://x, method: PUT}}"), false, []string{`f:6:41: tools[0].check.http.method: "PUT" is not one of GET, POST`}},
		{"headers are a list", checkedBy("{http: {url: http://x, headers: [a]}}"), false, []string{
			"f:6:42: tools[0].check.http.headers: want the name of a header and where its value is, as in Authorization: {env: TOKEN}, got a list"}},
		{"header is text", checkedBy("{http: {url: http://x, headers: {a: secret}}}"), false, []string{
			"f:6:46: tools[0].check.http.headers.a: want where the header's value is, as in {env: TOKEN} or {secret: token}, got text"}},
		{"header of nothing", checkedBy("{http: {url: http://x, headers: {a: {}}}}"), false, []string{
			"f:6:46: tools[0].check.http.headers.a: want where the header's value is, as in {env: TOKEN} or {secret: token}"}},
		{"env of a header", checkedBy("{http: {url: http://x, headers: {a: {env: a b}}}}"), false, []string{
			`f:6:52: tools[0].check.http.headers.a.env: "a b": want the name of an environment variable`}},
		{"header names", checkedBy("{http: {url: http://x, headers: {a b: {env: A}, Toolfleet-Fence: {env: A}, HOST: {env: A}, c: {env: A}, C: {env: A}}}}"), true, []string{
			`f:6:43: tools[0].check.http.headers."a b": want the name of a header: 1 to 64 of [A-Za-z0-9_-]`,
			"f:6:58: tools[0].check.http.headers.Toolfleet-Fence: toolfleet sets this header itself",
			"f:6:85: tools[0].check.http.headers.HOST: toolfleet sets this header itself",
			"f:6:114: tools[0].check.http.headers.C: this header is there twice"}},

		{"retry is a number", toolWith("kind: read", "retry: 3"), false, []string{
			"f:6:10: tools[0].retry: want {attempts: 3, backoff: 500ms, max_backoff: 10s}, got a number"}},
		{"retry without attempts", toolWith("kind: read", "retry: {backoff: 1s}"), false, []string{
			"f:6:10: tools[0].retry: attempts is missing; want {attempts: 3, backoff: 500ms, max_backoff: 10s}"}},
		{"unknown key of a retry", toolWith("kind: read", "retry: {attempts: 2, jitter: 1}"), false, []string{
			`f:6:24: tools[0].retry: unknown key "jitter"; the keys here: attempts, backoff, max_backoff`}},
		{"no attempts", toolWith("kind: read", "retry: {attempts: 0}"), false, []string{
			"f:6:21: tools[0].retry.attempts: want a number from 1 to 10, the first run included"}},
		{"too many attempts", toolWith("kind: read", "retry:", "  backoff: 1s", "  attempts: 11"), false, []string{
			"f:8:15: tools[0].retry.attempts: want a number from 1 to 10, the first run included"}},
		{"attempts are text", toolWith("kind: read", `retry: {attempts: "3"}`), false, []string{
			"f:6:21: tools[0].retry.attempts: want a number from 1 to 10, the first run included, got text"}},
		{"attempts with a point", toolWith("kind: read", "retry: {attempts: 2.0}"), true, []string{
			"f:6:21: tools[0].retry.attempts: want a whole number, without a point"}},
		{"backoff", toolWith("kind: read", "retry: {attempts: 2, backoff: 5, max_backoff: 1h1ms}"), false, []string{
			`f:6:33: tools[0].retry.backoff: want a duration of at least 1ms, such as "5s", "500ms" or "2m", got a number`,
			"f:6:49: tools[0].retry.max_backoff: want at most 1h"}},
		{"backoff is longer", toolWith("kind: read", "retry: {attempts: 2, backoff: 2s, max_backoff: 1s}"), true, []string{"f:6:10: tools[0].retry: max_backoff is shorter than backoff"}},
		{"retry of a write", toolWith("retry: {attempts: 2}"), true, []string{"f:5:3: tools[0].retry" + once}},
		{"retry of a once write", toolWith("on_crash: once", "retry: {attempts: 2}"), true, []string{"f:6:3: tools[0].retry" + once}},
	} {
		t.Run(tt.name, tt.check)
	}
}
