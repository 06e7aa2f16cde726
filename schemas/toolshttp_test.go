package schemas

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// httpTool is a tools file with one http tool, whose input has the required members id and customer
// and the optional members limit and note.
func httpTool(lines ...string) string {
	return "tools:\n- name: refund\n" +
		"  input_schema: {type: object, required: [id, customer], properties: {id: {}, customer: {type: object}, limit: {}, note: {}}}\n" +
		"  http:\n    " + strings.Join(lines, "\n    ") + "\n"
}

func TestParseHTTP(t *testing.T) {
	file, err := ParseToolsFile("f", []byte(httpTool(
		`method: POST`, `url: "https://pay.internal:8443/refunds/{id}/of/{customer.id}?v=2&for={id}"`,
		`query: {limit: "{limit}", key: {secret: api.key}}`,
		`headers: {Authorization: {secret: pay_token, prefix: "Bearer "}, X-Note: "n: {note}", X-Env: {env: REGION}}`,
		`body: rest`, `timeout: 10s`, `success: [200, 201, 404]`, `failure: [302, 502]`, `output: /data/0/a~1b`, `max_response: 1MB`, `loopback: true`, `identity: true`)))
	if err != nil {
		t.Fatal(err)
	}
	want := &HTTP{
		Method: "POST", Origin: "https://pay.internal:8443", Path: "/refunds/{id}/of/{customer.id}", Query: "v=2&for={id}",
		Params: []HTTPValue{{Name: "limit", Template: "{limit}"}, {Name: "key", Secret: "api.key"}},
		Headers: []HTTPValue{
			{Name: "Authorization", Secret: "pay_token", Prefix: "Bearer "}, {Name: "X-Note", Template: "n: {note}"}, {Name: "X-Env", Env: "REGION"},
		},
		Body: HTTPBodyRest, Timeout: 10 * time.Second, Success: []int{200, 201, 404}, Failure: []int{302, 502}, Output: "/data/0/a~1b", MaxResponse: 1 << 20,
		Loopback: true, Identity: true,
	}
	if diff := cmp.Diff(want, file.Tools[0].HTTP); diff != "" {
		t.Error(diff)
	}
}

func TestParseHTTPDefaults(t *testing.T) {
	for _, tt := range []struct {
		lines string
		rest  bool
		body  HTTPBody
	}{
		{"url: https://a", false, HTTPBodyNone},
		{"{url: https://a, method: POST}", false, HTTPBodyInput},
		{"{url: https://a, method: PATCH, query: rest}", true, HTTPBodyNone},
		{"{url: https://a, query: rest}", true, HTTPBodyNone},
	} {
		file, err := ParseToolsFile("f", []byte(httpTool(tt.lines)))
		if err != nil {
			t.Errorf("%s: %v", tt.lines, err)
			continue
		}
		if h := file.Tools[0].HTTP; h.Rest != tt.rest || h.Body != tt.body || h.Path != "/" || h.MaxResponse != DefaultMaxResponse {
			t.Errorf("%s: got %+v", tt.lines, h)
		}
	}
}

func TestParseHTTPNamesEveryMistake(t *testing.T) {
	const address = "want an address such as https://example.com/orders/{id}: its host is fixed, it has no password and nothing after a #"
	for _, tt := range []mistakesCase{
		{"no address", httpTool("method: POST"), false, []string{`f:5:5: tools[0].http: url is missing; want {method: POST, url: "https://example.com/orders/{id}"}`}},
		{"another scheme", httpTool("url: file:///etc/passwd"), false, []string{"f:5:10: tools[0].http.url: want an address such as https://example.com/orders/{id}"}},
		{"template as host", httpTool(`url: "https://{id}/x"`), true, []string{"f:5:10: tools[0].http.url: " + address}},
		{"template in a host", httpTool(`url: "https://{id}.example.com/x"`), true, []string{"f:5:10: tools[0].http.url: " + address}},
		{"template as port", httpTool(`url: "https://example.com:{id}/x"`), true, []string{"f:5:10: tools[0].http.url: " + address}},
		{"a password", httpTool(`url: "https://me:hidden@example.com/x"`), true, []string{"f:5:10: tools[0].http.url: " + address}},
		{"a fragment", httpTool(`url: "https://example.com/x#y"`), true, []string{"f:5:10: tools[0].http.url: " + address}},
		{"a backslash", httpTool(`url: 'https://example.com\@evil.com/'`), true, []string{"f:5:10: tools[0].http.url: " + address}},
		{"unknown member", httpTool(`url: "https://a/{ids}"`), true, []string{"f:5:10: tools[0].http.url: {ids} is no property of input_schema"}},
		{"member that may be missing", httpTool(`url: "https://a/{limit}"`), true, []string{
			"f:5:10: tools[0].http.url: {limit} has to be in required of input_schema, because the address needs it"}},
		{"open brace", httpTool(`url: "https://a/{id"`), true, []string{
			"f:5:10: tools[0].http.url: want the name of a member of the input in braces, such as {order_id} or {customer.id}"}},
		{"closing brace", httpTool(`url: "https://a/id}"`), true, []string{"f:5:10: tools[0].http.url: a } has no { before it"}},
		{"own header", httpTool("url: https://a", "headers: {idempotency-key: x}"), true, []string{
			"f:6:15: tools[0].http.headers.idempotency-key: toolfleet sets this header itself"}},
		{"host header", httpTool("url: https://a", "headers: {Host: x}"), true, []string{"f:6:15: tools[0].http.headers.Host: toolfleet sets this header itself"}},
		{"header twice", httpTool("url: https://a", "headers: {A: x, a: y}"), true, []string{"f:6:21: tools[0].http.headers.a: this header is there twice"}},
		{"secret and env", httpTool("url: https://a", "headers: {A: {secret: x, env: Y}}"), true, []string{
			"f:6:18: tools[0].http.headers.A: want secret or env, not both"}},
		{"prefix alone", httpTool("url: https://a", `headers: {A: {prefix: "Bearer "}}`), true, []string{
			"f:6:18: tools[0].http.headers.A: prefix stands before a secret or an env"}},
		{"secret in a folder", httpTool("url: https://a", "headers: {A: {secret: ../x}}"), false, []string{
			"f:6:27: tools[0].http.headers.A.secret: want the name of a file of the secrets folder"}},
		{"query", httpTool("url: https://a", "query: all"), false, []string{
			`f:6:12: tools[0].http.query: "all": want the word rest, or parameters by name such as {limit: "{limit}"}`}},
		{"body of a GET", httpTool("url: https://a", "body: input"), true, []string{
			"f:6:5: tools[0].http.body: a GET has no body; write query: rest to send the input"}},
		{"rest twice", httpTool("url: https://a", "method: POST", "query: rest", "body: rest"), true, []string{
			"f:8:5: tools[0].http.body: the rest of the input is in the query already"}},
		{"success and failure", httpTool("url: https://a", "success: [200, 302]", "failure: [302]"), true, []string{
			"f:7:5: tools[0].http.failure: the status 302 is in success too"}},
		{"pointer", httpTool("url: https://a", "output: data"), false, []string{
			`f:6:13: tools[0].http.output: "data": want a JSON pointer such as /data/items`}},
		{"two runners", httpTool("url: https://a") + "  exec: {command: [a]}\n", false, []string{"f:4:3: tools[0].http: a tool is run by exec or by http, not by both"}},
	} {
		t.Run(tt.name, tt.check)
	}
}
