// Package builtin is the tools that come with every worker: Read, Glob, Grep, Write and Edit on the files
// of one folder, Bash, and four that do nothing useful (noop, sleep, fail, blob) for demos, tests and
// load runs. Their argument names are those that coding agents know.
//
// The file tools stay inside their [Root]: every access goes through os.Root, so "..", absolute paths and
// symbolic links that lead out are refused by the operating system's own path walk, not by comparing
// strings. Pipes, sockets and devices are never opened. Files are replaced whole, by a rename, so a reader
// or a crash sees the old content or the new one.
//
// What is not stopped: a hard link inside the folder to a file outside it cannot be told from a file of
// the folder, so Read shows it (Write and Edit replace the link and leave the file outside as it is). Who
// may make hard links in the folder may read what they link to. Bash is not confined to the folder at all.
//
// Phase two asks Check what there is to know before a call runs. The folder may change before phase five,
// so Run checks again and gives the same errors.
package builtin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The codes of the file tools' errors. messages.CodeTooLarge and messages.CodeInvalidArguments are used
// with their usual meaning.
const (
	CodePathOutsideRoot  messages.Code = "path_outside_root" // the path leads out of the working folder
	CodeInvalidPath      messages.Code = "invalid_path"      // no path at all: empty, too long, a NUL in it
	CodeInvalidPattern   messages.Code = "invalid_pattern"   // a glob or regular expression that cannot be read
	CodeNotFound         messages.Code = "not_found"         // nothing of that name
	CodeNotAFile         messages.Code = "not_a_file"        // a folder, pipe, socket or device where a file is needed
	CodeNotAFolder       messages.Code = "not_a_folder"      // a file where a folder is needed
	CodePermissionDenied messages.Code = "permission_denied" // the file system says no
	CodeNoMatch          messages.Code = "no_match"          // old_string is not in the file
	CodeAmbiguous        messages.Code = "ambiguous"         // old_string is in the file more than once
	CodeNoChange         messages.Code = "no_change"         // the edit would change nothing
	CodeChanged          messages.Code = "changed"           // the file changed while it was edited
)

// MaxOutput is how many characters of a builtin's output the model gets to read unless the tools file says otherwise.
const MaxOutput = 10_000

// spec is one builtin: what it promises, and what runs it on a root.
type spec struct {
	promise func() schemas.Tool
	runner  func(*Root) tool.Runner
}

var specs = map[string]spec{
	"Read":  readSpec(),
	"Glob":  globSpec(),
	"Grep":  grepSpec(),
	"Write": writeSpec(),
	"Edit":  editSpec(),
	"Bash":  bashSpec(),
	"noop":  noopSpec(),
	"sleep": sleepSpec(),
	"fail":  failSpec(),
	"blob":  blobSpec(),
}

// Names is the builtins that work in a folder, in the order in which help and listings name them.
func Names() []string { return []string{"Read", "Glob", "Grep", "Write", "Edit", "Bash"} }

// Promise is what the builtin of this name promises; false when there is none. A tools file may give it
// another name, kind or schema.
func Promise(name string) (schemas.Tool, bool) {
	s, ok := specs[name]
	if !ok {
		return schemas.Tool{}, false
	}
	return s.promise(), true
}

// New is the runner of the builtin of this name. Those of [Names] need a root; the demo builtins ignore it.
func New(name string, root *Root) (tool.Runner, error) {
	s, ok := specs[name]
	if !ok {
		return nil, fmt.Errorf("no builtin %.80q (there are %s)", name, strings.Join(messages.SortedKeys(specs), ", "))
	}
	if root == nil && slices.Contains(Names(), name) {
		return nil, fmt.Errorf("builtin %s needs a root folder", name)
	}
	return s.runner(root), nil
}

// refuse is an error for the model.
func refuse(code messages.Code, format string, args ...any) error {
	return &messages.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// arguments reads the input of a call. Names count exactly: encoding/json alone would take "FILE_PATH" for
// file_path, behind the back of a rule that looked at file_path. The schema in force may be an operator's
// own, so nothing is taken for granted.
func arguments[T any](call tool.Call) (T, error) {
	var args T
	members, err := messages.Object(call.Input)
	if err != nil {
		return args, refuse(messages.CodeInvalidArguments, "the input is no JSON object")
	}
	known := map[string]bool{}
	for field := range reflect.TypeFor[T]().Fields() {
		known[field.Tag.Get("json")] = true
	}
	for name, value := range members {
		if !known[name] {
			return args, refuse(messages.CodeInvalidArguments, "there is no argument %.80q", name)
		}
		if bytes.Equal(value, []byte("null")) {
			delete(members, name) // models write null for "not given"
		}
	}
	if err := json.Unmarshal(messages.MustMarshal(members), &args); err != nil {
		return args, refuse(messages.CodeInvalidArguments, "the input has an argument of the wrong type: %v", err)
	}
	return args, nil
}

// whole is a whole number however it is spelt: 10, 10.0 and 1e1 are one value to a JSON Schema.
type whole int

func (w *whole) UnmarshalJSON(raw []byte) error {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return fmt.Errorf("want a whole number, got %.40s", raw)
	}
	*w = whole(f)
	return nil
}

// or is the number, or standard when none was given.
func (w *whole) or(standard int) int {
	if w == nil {
		return standard
	}
	return int(*w)
}

// plural is "1 file", "2,000 files".
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return thousands(n) + " " + thing + "s"
}

// thousands is n with a comma between every three digits.
func thousands[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
