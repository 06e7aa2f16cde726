package exectool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// script returns a tool whose program is this shell script.
func script(t *testing.T, body string, change func(*Config)) *Tool {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n"+body), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Command: []string{"./tool", "one", "two words"}, Dir: dir}
	if change != nil {
		change(&cfg)
	}
	tool, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func call(input string) tool.Call {
	return tool.Call{Session: "s", Batch: "b", ID: "c", Tool: "t", Input: json.RawMessage(input), Attempt: 1}
}

func TestOutputIsWhatWasPrinted(t *testing.T) {
	for _, test := range []struct{ body, want string }{
		{`printf ''`, `""`},
		{`printf 'plain <text>\n'`, `"plain <text>\n"`},
		{`printf ' 42 \n'`, `42`},
		{`printf '"text"'`, `"text"`},
		{`printf null`, `null`},
		{`printf '{"a":1.10}\n'`, `{"a":1.10}`},
		{`printf '{"a":1,"a":2}'`, `"{\"a\":1,\"a\":2}"`},
		{`printf '{} {}'`, `"{} {}"`},
		{`printf '1e999'`, `"1e999"`},
		{`printf '\n \n'`, `"\n \n"`},
		{`printf 'a\377\000b'`, `"a` + "\uFFFD" + `\u0000b"`},
		{`printf '"\377"'`, `"\"` + "\uFFFD" + `\""`},
		{`echo words >&2; echo out`, `"out\n"`},
		{`printf '%s' "$#$1$2"`, `"2onetwo words"`},
		{`pwd >/dev/null; [ -x ./tool ] && printf here`, `"here"`},
	} {
		out, err := script(t, test.body, nil).Run(t.Context(), call(`{}`))
		if diff := cmp.Diff(test.want, string(out.Value)); err != nil || diff != "" {
			t.Errorf("%s: %v %s", test.body, err, diff)
		}
	}
}

func TestFailureQuotesTheProgram(t *testing.T) {
	for body, want := range map[string]string{
		`echo out; echo bad >&2; exit 3`: "bad",
		`echo out; exit 3`:               "out",
		`exit 3`:                         "The program ended without any output: exit status 3.",
		`head -c 9000 /dev/zero | tr '\000' x >&2; echo END >&2; exit 1`: strings.Repeat("x", maxMessage-3) + "END",
	} {
		_, err := script(t, body, nil).Run(t.Context(), call(`{}`))
		var failed *messages.Error
		if !errors.As(err, &failed) || failed.Code != messages.CodeToolError || failed.Message != want {
			t.Errorf("%s: got %.300v, want %.300s", body, err, want)
		}
	}
}

// A signal ends the program of a call: the call is lost, because nobody knows how far the
// program came.
func TestAProgramThatIsKilledLosesItsCall(t *testing.T) {
	for body, want := range map[string]string{
		`kill -SEGV $$`:                 "The program ended without any output: signal: segmentation fault.",
		`echo half way >&2; kill -9 $$`: "half way",
	} {
		_, err := script(t, body, nil).Run(t.Context(), call(`{}`))
		var lost *tool.LostError
		if !errors.As(err, &lost) || lost.Unsent || err.Error() != want {
			t.Errorf("%s: got %v, want that its call is lost: %s", body, err, want)
		}
	}
}

func TestExitStatusSaysWhetherToTryAgain(t *testing.T) {
	for body, want := range map[string]bool{`exit 75`: true, `exit 74`: false} {
		_, err := script(t, body, nil).Run(t.Context(), call(`{}`))
		var failed *messages.Error
		if !errors.As(err, &failed) || failed.Code != messages.CodeToolError || failed.Retryable != want {
			t.Errorf("%s: got %+v, want retryable %v", body, failed, want)
		}
	}
}

func TestEnvironmentIsTheCall(t *testing.T) {
	t.Setenv("NATS_CREDS", "secret")
	t.Setenv("DB_URL", "db")
	tl := script(t, `env | cut -d= -f1 | grep -v -e '^_$' -e PWD -e SHLVL -e OLDPWD -e TOOLFLEET_PROCESS_TREE | sort | tr '\n' ' '; printf %s "$DB_URL$TOOLFLEET_SESSION"`,
		func(c *Config) { c.Env = []string{"DB_URL"} })
	t.Setenv("PATH", os.Getenv("PATH"))
	t.Setenv("HOME", "/")
	t.Setenv("LANG", "C")
	out, err := tl.Run(t.Context(), call(`{}`))
	want := `"DB_URL HOME LANG PATH TOOLFLEET_ATTEMPT TOOLFLEET_BATCH TOOLFLEET_CALL_ID TOOLFLEET_FENCE TOOLFLEET_IDEMPOTENCY_KEY TOOLFLEET_INDEX TOOLFLEET_PROGRESS_FD TOOLFLEET_SESSION dbs"`
	if diff := cmp.Diff(want, string(out.Value)); err != nil || diff != "" {
		t.Error(err, diff)
	}
	nul := call(`{}`)
	nul.ID = "a\x00b"
	if _, err := tl.Run(t.Context(), nul); err == nil || !strings.Contains(err.Error(), "TOOLFLEET_CALL_ID holds a NUL") {
		t.Errorf("got %v", err)
	}
}

func TestNewNamesTheProgram(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "exec: command is empty"},
		{Config{Command: []string{""}}, "exec: command is empty"},
		{Config{Command: []string{"./lookup"}, Dir: dir}, "exec: program ./lookup: no such file"},
		{Config{Command: []string{"./plain"}, Dir: dir}, "exec: program ./plain: is not executable: chmod +x makes it so"},
		{Config{Command: []string{dir}}, "exec: program " + dir + ": is a directory"},
		{Config{Command: []string{"no-such-program-here"}}, "exec: program no-such-program-here: executable file not found in $PATH"},
		{Config{Command: []string{"sh", "a\x00"}}, `exec: command "a\x00" holds a NUL byte`},
	} {
		if _, err := New(test.cfg); err == nil || err.Error() != test.want {
			t.Errorf("%q: got %v, want %s", test.cfg.Command, err, test.want)
		}
	}
}

// An output of up to maxOutput bytes is stored whole. Of a longer one, the beginning and the
// end are kept.
func TestLongOutputKeepsBothEnds(t *testing.T) {
	for _, limit := range []int{maxOutput, maxOutput + 1<<20} {
		tl := script(t, fmt.Sprintf(`printf '['; head -c %d /dev/zero | tr '\000' 1; printf ']'`, limit), nil)
		out, err := tl.Run(t.Context(), call(`{}`))
		if err != nil || len(out.Value) > maxOutput+100 {
			t.Fatalf("got %d bytes, %v", len(out.Value), err)
		}
		half := strings.Repeat("1", maxOutput/2-1)
		want := fmt.Sprintf(`"[%s\n[... %d bytes left out ...]\n%s]"`, half, limit+2-maxOutput, half)
		if string(out.Value) != want {
			t.Errorf("got %.20s ... %s", out.Value, out.Value[max(0, len(out.Value)-20):])
		}
	}
}

// A program may print an error of its own on stdout and exit with a failure. Other text on
// stdout is not read as an error.
func TestOwnError(t *testing.T) {
	for _, tt := range []struct {
		body string
		want messages.Error
	}{
		{`echo '{"error":"no_stock","message":"Sold out.","retryable":true,"details":{"left":0}}'; exit 1`,
			messages.Error{Code: "no_stock", Message: "Sold out.", Retryable: true, Details: json.RawMessage(`{"left":0}`)}},
		{`echo '{"error":"no_stock","message":"Sold out."}'; exit 75`, messages.Error{Code: "no_stock", Message: "Sold out.", Retryable: true}},
		{`echo '{"error":"No stock","message":"x"}'; exit 1`, messages.Error{Code: "tool_error", Message: `{"error":"No stock","message":"x"}`}},
		{`echo '{"error":"a","message":"x","more":1}'; echo why >&2; exit 1`, messages.Error{Code: "tool_error", Message: "why"}},
		{`echo '{"error":"a"}'; exit 1`, messages.Error{Code: "tool_error", Message: `{"error":"a"}`}},
	} {
		_, err := script(t, tt.body, nil).Run(t.Context(), call(`{}`))
		var own *messages.Error
		if !errors.As(err, &own) || !reflect.DeepEqual(*own, tt.want) {
			t.Errorf("%s: got %+v, %v, want %+v", tt.body, own, err, tt.want)
		}
	}
}
