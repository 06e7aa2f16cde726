// Package builtin holds the tools that come with every worker: Read, Glob, Grep, Write and Edit on
// the files of one folder, Bash, and four that do nothing useful (noop, sleep, fail, blob) for
// demos, tests and load runs. Their argument names are those that coding agents know.
//
// The file tools stay inside their [Root]. Every access goes through os.Root, so the operating
// system's own path walk refuses "..", absolute paths and symbolic links that lead out; nothing
// depends on comparing strings. Pipes, sockets and devices are never opened. Files are replaced
// whole, by a rename, so a reader or a crash sees the old content or the new one.
//
// Hard links are not stopped. A hard link inside the folder to a file outside it looks like a file
// of the folder, so Read shows it (Write and Edit replace the link and leave the file outside as it
// is). A user who may make hard links in the folder can thus read what they link to. Bash is not
// confined to the folder at all.
//
// In phase two Check refuses what it can before a call runs. The folder may change before phase
// five, so Run checks again and gives the same errors.
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

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The codes of the file tools' errors. messages.CodeTooLarge and messages.CodeInvalidArguments are
// used too, with their usual meaning.
const (
	// The path leads out of the working folder.
	CodePathOutsideRoot messages.Code = "path_outside_root"
	// The path is empty, too long, or has a NUL in it.
	CodeInvalidPath messages.Code = "invalid_path"
	// The glob or regular expression is malformed.
	CodeInvalidPattern messages.Code = "invalid_pattern"
	// Nothing has that name.
	CodeNotFound messages.Code = "not_found"
	// A folder, pipe, socket or device stands where a file is needed.
	CodeNotAFile messages.Code = "not_a_file"
	// A file stands where a folder is needed.
	CodeNotAFolder messages.Code = "not_a_folder"
	// The file system refuses the access.
	CodePermissionDenied messages.Code = "permission_denied"
	// The file does not contain old_string.
	CodeNoMatch messages.Code = "no_match"
	// The file contains old_string more than once.
	CodeAmbiguous messages.Code = "ambiguous"
	// The edit would change nothing.
	CodeNoChange messages.Code = "no_change"
	// The file changed while it was edited.
	CodeChanged messages.Code = "changed"
)

// MaxOutput bounds what the model gets to read of a builtin's output, in characters, unless the
// tools file sets another bound.
const MaxOutput = 10_000

// spec is one builtin: its definition, and its runner on a root.
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

// Names returns the builtins that work in a folder, in the order of help texts and listings.
func Names() []string { return []string{"Read", "Glob", "Grep", "Write", "Edit", "Bash"} }

// Promise returns the definition of the builtin of this name, and false when there is none. A tools
// file may give it another name, kind or schema.
func Promise(name string) (schemas.Tool, bool) {
	s, ok := specs[name]
	if !ok {
		return schemas.Tool{}, false
	}
	return s.promise(), true
}

// New returns the runner of the builtin of this name. The builtins of [Names] need a root; the demo
// builtins ignore it.
func New(name string, root *Root) (tool.Runner, error) {
	s, ok := specs[name]
	if !ok {
		return nil, fmt.Errorf("no builtin %.80q (there are %s)", name, strings.Join(rawjson.SortedKeys(specs), ", "))
	}
	if root == nil && slices.Contains(Names(), name) {
		return nil, fmt.Errorf("builtin %s needs a root folder", name)
	}
	return s.runner(root), nil
}

// refuse makes an error for the model.
func refuse(code messages.Code, format string, args ...any) error {
	return &messages.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// arguments reads the input of a call. Names must match exactly: encoding/json alone would take
// "FILE_PATH" for file_path, which a rule about file_path would not see. The schema in force may be
// an operator's own, so nothing is taken for granted.
func arguments[T any](call tool.Call) (T, error) {
	var args T
	members, err := rawjson.Object(call.Input)
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
	if err := json.Unmarshal(rawjson.MustMarshal(members), &args); err != nil {
		return args, refuse(messages.CodeInvalidArguments, "the input has an argument of the wrong type: %v", err)
	}
	return args, nil
}

// whole is a whole number in any spelling: 10, 10.0 and 1e1 are the same value to a JSON Schema.
type whole int

func (w *whole) UnmarshalJSON(raw []byte) error {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return fmt.Errorf("want a whole number, got %.40s", raw)
	}
	*w = whole(f)
	return nil
}

// or returns the number, or standard when none was given.
func (w *whole) or(standard int) int {
	if w == nil {
		return standard
	}
	return int(*w)
}

// plural formats a count: "1 file", "2,000 files".
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return thousands(n) + " " + thing + "s"
}

// thousands formats n with a comma between every three digits.
func thousands[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
