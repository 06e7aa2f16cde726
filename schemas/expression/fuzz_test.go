package expression

import (
	"encoding/json"
	"errors"
	"testing"
)

var seeds = []string{
	`input.amount > 50`, `input.l.all(x, x.y == "a" || x.z in [1, 2.0, "b"])`, `has(input.a) ? input.a : false`, `tool.name.matches("^a(b|c)*$")`,
	`input.l.map(x, {"k": x})[0].k == b"a"`, `timestamp(input.s).getFullYear() > 2000`, `"a".charAt(1) == "" && input.s.split(",")[1].trim() == "x"`,
	`input == {"a": [null, -1, 1u, 0x1f]}`, `type(input.a) == int`, "r'''\n'''.size() > 0 // comment", `input.?a.orValue(1) == 1`, `dyn(1) < 1.5`,
}

// FuzzCompile: no text causes a panic, and every mistake has a place.
func FuzzCompile(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		for _, want := range []Type{Bool, Text} {
			p, err := Compile(source, want)
			var e *Error
			if (p == nil) == (err == nil) || err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Column < 1 || e.Message == "") {
				t.Errorf("got %v, %#v", p, err)
			}
			if p != nil {
				_, _ = p.eval(NewSubject(Call{Input: json.RawMessage(`{"a":{"b":[1,"x",null]},"s":"text"}`)}))
			}
		}
	})
}

// FuzzEval: no input causes a panic, and the same input always has the same answer.
func FuzzEval(f *testing.F) {
	for _, s := range []string{`{"amount":50.01}`, `{"l":[{"y":"a","z":1e3}],"s":"2026-11-21T09:00:00Z","a":true}`, `{"a":{"":[[],{}]}}`, `[1`, `{"s":"\ud800"}`, `{"a":-0.0e-399}`} {
		f.Add(s)
	}
	var programs []*Program
	for _, s := range seeds {
		if p, err := Compile(s, Bool); err == nil {
			programs = append(programs, p)
		}
	}
	if len(programs) < len(seeds)-2 {
		f.Fatalf("only %d of %d seeds compile", len(programs), len(seeds))
	}
	f.Fuzz(func(t *testing.T, input string) {
		s, again := subject(input), subject(input)
		for _, p := range programs {
			got, err := p.Bool(s)
			twin, twinErr := p.Bool(again)
			if got != twin || !errors.Is(err, twinErr) || err != nil && (got || err.Error() == "") {
				t.Errorf("%s on %q: got %v, %v; then %v, %v", p.Source(), input, got, err, twin, twinErr)
			}
		}
	})
}

func BenchmarkBool(b *testing.B) {
	p := mustCompile(b, `input.amount > 50 && tool.name == "refund"`, Bool)
	s := subject(`{"amount":50.01,"currency":"EUR"}`)
	for b.Loop() {
		_, _ = p.Bool(s)
	}
}
