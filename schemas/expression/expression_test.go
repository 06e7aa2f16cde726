package expression

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

func mustCompile(t testing.TB, source string, want Type) *Program {
	t.Helper()
	p, err := Compile(source, want)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return p
}

func subject(input string) *Subject {
	return NewSubject(Call{Tool: "refund", Kind: messages.KindWrite, Pool: "payments", Input: json.RawMessage(input), Session: "s-1", Tenant: "support", User: "bob", Labels: map[string]string{"env": "prod"}})
}

func TestBool(t *testing.T) {
	for _, tt := range []struct {
		source, input string
		want          bool
		err           error
	}{
		{`input.amount > 50`, `{"amount":50}`, false, nil},
		{`input.amount > 50`, `{"amount":50.0}`, false, nil},
		{`input.amount > 50`, `{"amount":5e1}`, false, nil},
		{`input.amount > 50`, `{"amount":50.01}`, true, nil},
		{`input.amount > 50`, `{"amount":51}`, true, nil},
		{`input.amount > 50`, `{"amount":1e300}`, true, nil},
		{`input.amount > 50`, `{"amount":-1e300}`, false, nil},
		{`input.amount > 50`, `{"amount":"50"}`, false, errType},
		{`input.amount > 50`, `{"amount":"99"}`, false, errType},
		{`input.amount > 50`, `{"amount":null}`, false, errType},
		{`input.amount > 50`, `{"amount":[99]}`, false, errType},
		{`input.amount > 50`, `{}`, false, errMissing},
		{`input.amount > 50`, `{"Amount":99}`, false, errMissing},
		{`input.amount > 50`, `{"amount":99,"n":1e309}`, false, errInput},
		{`input.amount > 50`, `{"amount":99,"n":[{"m":-1e309}]}`, false, errInput},
		{`input.amount > 50`, `{"amount":1,"amount":99}`, false, errInput},
		{`input.amount > 50`, `[99]`, false, errInput},
		{`input.amount > 50`, `null`, false, errInput},
		{`input.amount > 50`, ``, false, errInput},
		{`input.amount > 50.0`, `{"amount":50}`, false, nil},
		{`input.amount > 50.0`, `{"amount":51}`, true, nil},
		{`input.amount == 50`, `{"amount":50.0}`, true, nil},
		{`input.amount == 50.0`, `{"amount":50}`, true, nil},
		{`input.amount == 50`, `{"amount":"50"}`, false, nil},
		{`input.amount in [10, 50]`, `{"amount":50.0}`, true, nil},
		{`input.n == 9007199254740993`, `{"n":9007199254740993}`, true, nil},
		{`input.n == 9007199254740993`, `{"n":9007199254740992}`, false, nil},
		{`input.n > 9223372036854775807`, `{"n":18446744073709551616}`, true, nil},
		{`type(input.n) == int`, `{"n":-9223372036854775808}`, true, nil},
		{`type(input.n) == int`, `{"n":9223372036854775808}`, false, nil},
		{`type(input.n) == double`, `{"n":0.99999999999999999999}`, false, errOther},
		{`type(input.n) == int`, `{"n":-0.0}`, true, nil},
		{`input.n + 1 > 0`, `{"n":9223372036854775807}`, false, errOther},
		{`input.n / 0 > 0`, `{"n":1}`, false, errOther},
		{`1 / input.n > 0`, `{"n":0}`, false, errOther},
		{`double(input.n) * 1.5 > 1.0`, `{"n":1}`, true, nil},
		{`has(input.a.b) && input.a.b`, `{"a":{"b":true}}`, true, nil},
		{`has(input.a.b) && input.a.b`, `{"a":{}}`, false, nil},
		{`has(input.a.b)`, `{}`, false, errMissing},
		{`input.flag`, `{"flag":true}`, true, nil},
		{`input.flag`, `{"flag":1}`, false, errType},
		{`input.flag`, `{"flag":null}`, false, errType},
		{`input.to.all(x, x.endsWith("@example.com"))`, `{"to":["a@example.com","b@example.com"]}`, true, nil},
		{`input.to.exists(x, !x.endsWith("@example.com"))`, `{"to":["a@example.com","b@example.org"]}`, true, nil},
		{`size(input.to) > 1`, `{"to":["a"]}`, false, nil},
		{`size(input.to) > 1.5`, `{"to":["a","b"]}`, true, nil},
		{`input.to[3] == "a"`, `{"to":["a"]}`, false, errMissing},
		{`input["with space"] == "x"`, `{"with space":"x"}`, true, nil},
		{`input.path.startsWith("/etc/") || input.path.contains("..")`, `{"path":"a/../b"}`, true, nil},
		{`input.id.matches("^ORD-[0-9]+$")`, `{"id":"ORD-17"}`, true, nil},
		{`input.id.lowerAscii().replace("-", "") == "ord17"`, `{"id":"ORD-17"}`, true, nil},
		{`int(input.id) == 1`, `{"id":"secret"}`, false, errOther},
		{`timestamp(input.at) > timestamp("2026-01-01T00:00:00Z")`, `{"at":"2026-11-21T00:00:00Z"}`, true, nil},
		{`tool.name == "refund" && tool.kind == "write" && tool.pool == "payments"`, `{}`, true, nil},
		{`session.id == "s-1" && principal.id == "support"`, `{}`, true, nil},
		// A mistake on one side does not hide the value of the other side.
		{`input.x > 1 || tool.name == "refund"`, `{}`, true, nil},
		{`input.x > 1 && tool.name == "other"`, `{}`, false, nil},
	} {
		got, err := mustCompile(t, tt.source, Bool).Bool(subject(tt.input))
		if got != tt.want || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s on %s: got %v, %v; want %v, %v", tt.source, tt.input, got, err, tt.want, tt.err)
		}
	}
}

func TestText(t *testing.T) {
	for input, want := range map[string]string{`{"id":"7"}`: "orders-7", `{"id":7}`: "", `{}`: ""} {
		got, err := mustCompile(t, `"orders-" + input.id`, Text).Text(subject(input))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", input, got, err, want)
		}
	}
	if _, err := mustCompile(t, `input.id`, Text).Text(subject(`{"id":7}`)); !errors.Is(err, errType) {
		t.Errorf("a number as text: %v", err)
	}
}

func TestWhoAsks(t *testing.T) {
	for source, want := range map[string]string{
		`principal.user == "bob" && principal.id == "support"`: "true",
		`labels.env == "prod"`:                                 "true",
		`labels["env"] == "dev"`:                               "false",
		`labels.team == "a"`:                                   errMissing.Error(),
		`"team" in labels && labels.team == "a"`:               "false",
		`has(labels.env) && !has(labels.team)`:                 "true",
	} {
		got, err := mustCompile(t, source, Bool).Bool(subject(`{}`))
		if said := fmt.Sprint(got); err == nil && said != want || err != nil && err.Error() != want {
			t.Errorf("%s: got %v, %v; want %s", source, got, err, want)
		}
	}
	nobody := NewSubject(Call{Input: json.RawMessage(`{}`)})
	if got, err := mustCompile(t, `principal.user == "" && !has(labels.env)`, Bool).Bool(nobody); !got || err != nil {
		t.Errorf("nobody asks: got %v, %v", got, err)
	}
}

func TestCompileSaysWhere(t *testing.T) {
	const known = "; an expression reads input, labels, tool.name, tool.kind, tool.pool, session.id, principal.id, principal.user"
	for source, want := range map[string]string{
		"":                                    "1:1: is empty",
		" \n":                                 "1:1: is empty",
		"a\xff":                               "1:1: is no valid UTF-8",
		strings.Repeat("x", MaxSource+1):      "1:1: 4097 bytes long (limit 4096)",
		`tool.nmae == "x"`:                    "1:5: 'tool.nmae' is not known" + known,
		`true && session.user == "x"`:         "1:16: 'session.user' is not known" + known,
		`principal.tenant == "x"`:             "1:1: 'principal' is not known" + known,
		`tool == "x"`:                         "1:1: 'tool' is not known" + known,
		`inptu.x`:                             "1:1: 'inptu' is not known" + known,
		"input.a == 1 &&\n  foo(2)":           "2:3: there is no function foo",
		`"a"`:                                 "1:1: results in string, want true or false",
		`input`:                               "1:1: results in map(string, dyn), want true or false",
		`tool.name + 1 == "x"`:                "1:11: found no matching overload for '_+_' applied to '(string, int)'",
		`tool.name.x == "x"`:                  "1:10: type 'string' does not support field selection",
		`"é" == input.x && nope`:              "1:19: 'nope' is not known" + known,
		`input.x.matches(input.y)`:            "1:22: matches: write the regular expression as a literal; one from the input could cost too much",
		`matches(input.x, input.y)`:           "1:23: matches: write the regular expression as a literal; one from the input could cost too much",
		`input.x.matches("[")`:                "1:17: invalid matches argument",
		`input.a.join() == ""`:                "1:13: join is not available: its result may be far larger than the input",
		`"%s".format([input.a]) == ""`:        "1:12: format is not available: its result may be far larger than the input",
		`input.a.replace("a", input.b) == ""`: "1:27: replace: write out what it looks for and puts in, with at most 100 bytes",
		`input.a.replace("", "b") == ""`:      "1:16: replace: what it looks for is empty",
		`input.l.exists(x, x.indexOf(input.b) > 0)`:                     "1:34: indexOf: write out what it looks for and puts in, with at most 100 bytes",
		`input.a.lastIndexOf("` + strings.Repeat("a", 101) + `") == 1`:  "1:21: lastIndexOf: write out what it looks for and puts in, with at most 100 bytes",
		strings.Repeat("(", 500) + "true" + strings.Repeat(")", 500):    "",
		strings.Repeat("[", 2000):                                       "",
		strings.Repeat("input.l.all(x, ", 200) + strings.Repeat(")", 9): "",
	} {
		_, err := Compile(source, Bool)
		var e *Error
		if !errors.As(err, &e) || e.Line < 1 || e.Column < 1 || e.Message == "" || strings.Contains(e.Message, "\n") {
			t.Errorf("%.60q: got %#v, want an *Error with a place", source, err)
			continue
		}
		if want != "" && e.Error() != want {
			t.Errorf("%.60q:\n got %s\nwant %s", source, e, want)
		}
	}
	if _, err := Compile(`true`, Text); err == nil || err.Error() != "1:1: results in bool, want text" {
		t.Errorf("true as text: %v", err)
	}
}

func TestMistakesAreSentences(t *testing.T) {
	const known = "; an expression reads input, labels, tool.name, tool.kind, tool.pool, session.id, principal.id, principal.user"
	const escape = ` is no escape in a text; a backslash is written \\, and r"..." takes it as it is`
	for source, want := range map[string]string{
		// Unknown functions: the error suggests a name, at the place of the name.
		`input.reason.contain("x")`:             "1:14: there is no function contain; did you mean contains?",
		"true &&\n \"é\".startWith ( \"x\" )":   "2:6: there is no function startWith; did you mean startsWith?",
		`siz(input.l) > 1`:                      "1:1: there is no function siz; did you mean size?",
		`len(input.l) > 1`:                      "1:1: there is no function len; did you mean size?",
		`input.l.any(x, x == 1)`:                "1:9: there is no function any; did you mean exists?",
		`input.l.exist(x, x == 1)`:              "1:9: there is no function exist; did you mean exists?",
		`input.a.principalid()`:                 "1:9: there is no function principalid",
		`input.l.exists(x)`:                     "1:9: exists is used like exists(x, x > 1)",
		`has(input)`:                            "1:5: has wants a member, such as has(input.reason)",
		`tool.nmae.contains("x")`:               "1:5: 'tool.nmae' is not known" + known,
		`session . user . x . startsWith("x")`:  "",
		`input.reason.contain(input.reason) `:   "1:14: there is no function contain; did you mean contains?",
		`input.a.contain("(") && input.b.len()`: "1:9: there is no function contain; did you mean contains?",
		// Expressions that end too early.
		`input.amount >`:               "1:15: the expression ends too early",
		"input.amount >\n\n":           "1:15: the expression ends too early",
		"input.amount > 1\n && (\r\n ": "2:6: the expression ends too early",
		`input.`:                       "1:7: the expression ends too early",
		`(input.a == 1`:                "1:14: the expression ends too early: ')' is missing",
		`input.l[0`:                    "1:10: the expression ends too early: ']' is missing",
		`input.a ? 1`:                  "1:12: the expression ends too early: ':' is missing",
		`[1, 2`:                        "1:6: the expression ends too early",
		`input.a == "x`:                "1:12: the text that begins here does not end",
		`input.a == 'it''`:             "1:16: the text that begins here does not end",
		// Operators of other languages.
		`input.a = 1`:               "1:9: '=' is no operator; == is",
		`input.a === 1`:             "1:9: '===' is no operator; == is",
		`input.a !== 1`:             "1:9: '!==' is no operator; != is",
		`input.a <> 1`:              "1:9: '<>' is no operator; != is",
		`input.a => 1`:              "1:9: '=>' is no operator; >= is",
		`input.a & input.b`:         "1:9: '&' is no operator; && is",
		`input.a|input.b`:           "1:8: '|' is no operator; || is",
		`input.a and input.b`:       "1:9: 'and' is no operator; && is",
		`input.a OR input.b`:        "1:9: 'OR' is no operator; || is",
		`input.a && (not input.b)`:  "1:13: 'not' is no operator; ! is",
		`input.a == “x”`:            "1:12: “ is no quotation mark of the language; \" and ' are",
		`input.a.matches("^\d+$")`:  "1:17: \\d" + escape,
		`input.a == 1)`:             "1:13: ')' is not expected here",
		`input.a == 1 input.b`:      "1:14: 'input' is not expected here",
		`input.a ==  == 1`:          "1:13: '==' is not expected here",
		`input.a == 1;`:             "1:13: ';' is not expected here",
		`input.in == 1`:             "1:7: Syntax error: no viable alternative at input '.in'",
		`if input.a`:                "1:1: reserved identifier: if",
		`99999999999999999999 == 1`: "1:1: invalid int literal",
	} {
		_, err := Compile(source, Bool)
		var e *Error
		if !errors.As(err, &e) || e.Line < 1 || e.Column < 1 || want != "" && e.Error() != want {
			t.Errorf("%q:\n got %v\nwant %s", source, err, want)
		}
	}
}

// TestErrorsQuoteNothing: an error, which a caller may log or send to the model, never contains an
// argument.
func TestErrorsQuoteNothing(t *testing.T) {
	const secret = "hunter2"
	input := `{"s":"` + secret + `","m":{"` + secret + `":1},"re":"(` + secret + `","l":["` + secret + `"]}`
	for _, source := range []string{
		`int(input.s) > 0`, `double(input.s) > 0.0`, `bool(input.s)`, `duration(input.s) > duration("1s")`, `timestamp(input.s) > timestamp(0)`,
		`input[input.s] == 1`, `input.m[input.re] == 1`, `input.s`, `input.s > 1`, `-input.s > 1`, `input.l[input.s] == 1`,
		`input.s.charAt(99) == "a"`, `"a" in input.s`, `input.s.nope`, `input.l.map(x, int(x)) == [1]`, `uint(input.s) == 1u`, `input.s.substring(3, 1) == ""`,
	} {
		if _, err := mustCompile(t, source, Bool).Bool(subject(input)); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v, want an error without %q", source, err, secret)
		}
	}
}

// TestCostIsLimited: evaluations that would run for hours end with an error. Otherwise the test
// does not end.
func TestCostIsLimited(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector, which sees nothing in one goroutine")
	}
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", 3000), ",") + "]"
	texts := `["` + strings.Repeat(`a","`, 3000) + `a"]`
	long := strings.Repeat("a", 1<<20)
	input := fmt.Sprintf(`{"l":%[1]s,"m":[[%[1]s]],"t":%[2]s,"s":%[3]q,"re":"(((a*)*)*)*b"}`, list, texts, long)
	s := subject(input)
	for _, source := range []string{
		`input.l.all(a, input.l.all(b, input.l.all(c, input.l.all(d, a + b + c + d > 0))))`,
		`size(input.l.map(a, input.l.map(b, input.l.map(c, input.l)))) > 0`,
		`input.l.exists(a, input.l.exists(b, input.l.exists(c, c == 2)))`,
		`input.t.map(x, x + input.s).exists(y, y == "")`,
		`input.t.exists(x, input.s.matches("(((a*)*)*)*b"))`,
		`input.s.matches("[a-z]{100,1000}b")`,
		`matches(input.s, "(?:[a-z]+ ?){1,400}secret")`,
		`input.t.exists(x, x.matches("(?:[a-z]{1,30}){30}"))`,
		`input.t.exists(x, input.s.replace("a", "bb").contains("c"))`,
		`input.t.exists(x, input.s.split("").size() == 0)`,
		`input.t.exists(x, input.s.reverse() == "")`,
		`input.t.exists(x, input.t.exists(y, size(input.s) == 3))`,
		`input.t.exists(x, input.t.exists(y, input.s < input.s))`,
		`input.l.exists(x, 2 in input.l)`,
		`input.l.exists(x, input.l + [1] == input.l + [2])`,
		`input.t.exists(x, {"k": [input.m]} == {"k": [input.m]} && false)`,
		`input.t.exists(x, size(bytes(input.s)) == 0)`,
		`input.t.exists(x, string(input.s) + "a" == "")`,
		`input.l.exists(x, x in input.l && input.l.map(y, y * 2) == [])`,
	} {
		if got, err := mustCompile(t, source, Bool).Bool(s); !errors.Is(err, errCost) {
			t.Errorf("%s: got %v, %v; want %v", source, got, err, errCost)
		}
	}
	// Ordinary conditions on a large input stay below the limit.
	for _, source := range []string{
		`input.s.contains("b") || input.l.exists(x, x == 2)`, `input.s.matches("^a+b$")`, `input.t.all(x, x.matches("^[a-z]{1,20}$"))`, `size(input.s) > 100 && input.t.all(x, x == "a")`,
		`"b" in input.t || input.s == "b"`,
	} {
		if _, err := mustCompile(t, source, Bool).Bool(s); err != nil {
			t.Errorf("%s: %v", source, err)
		}
	}
}

func TestProgramsAndSubjectsAreShared(t *testing.T) {
	p := mustCompile(t, `input.l.exists(x, x > 2) && input.s.matches("^a")`, Bool)
	s := subject(`{"l":[1,2,3],"s":"abc"}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if ok, err := p.Bool(s); !ok || err != nil {
					t.Errorf("got %v, %v", ok, err)
				}
			}
		})
	}
	wg.Wait()
}
