// Package base holds code that all builtins share: reading arguments, refusals with their
// codes, and counts as text.
package base

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The error codes of the file tools. They also use messages.CodeTooLarge and
// messages.CodeInvalidArguments, with their usual meaning.
const (
	// The path leads out of the working folder.
	CodePathOutsideRoot messages.Code = "path_outside_root"
	// The path is empty, too long, or has a NUL in it.
	CodeInvalidPath messages.Code = "invalid_path"
	// The glob or regular expression is malformed.
	CodeInvalidPattern messages.Code = "invalid_pattern"
	// No file or folder has that name.
	CodeNotFound messages.Code = "not_found"
	// The path is a folder, pipe, socket or device, and the tool needs a file.
	CodeNotAFile messages.Code = "not_a_file"
	// The path is a file, and the tool needs a folder.
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

// MaxOutput is how many characters of a builtin's output the model reads, unless the tools
// file sets another limit.
const MaxOutput = 10_000

// Refuse returns an error for the model.
func Refuse(code messages.Code, format string, args ...any) error {
	return &messages.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Arguments reads the input of a call. Names must match exactly: encoding/json alone would
// take "FILE_PATH" for file_path, and a permission rule about file_path would not see it. The
// operator may have replaced the schema, so Arguments checks every argument.
func Arguments[T any](call tool.Call) (T, error) {
	var args T
	members, err := rawjson.Object(call.Input)
	if err != nil {
		return args, Refuse(messages.CodeInvalidArguments, "the input is no JSON object")
	}
	known := map[string]bool{}
	for field := range reflect.TypeFor[T]().Fields() {
		known[field.Tag.Get("json")] = true
	}
	for name, value := range members {
		if !known[name] {
			return args, Refuse(messages.CodeInvalidArguments, "there is no argument %.80q", name)
		}
		if bytes.Equal(value, []byte("null")) {
			delete(members, name) // models write null for an argument that they do not give
		}
	}
	if err := json.Unmarshal(rawjson.MustMarshal(members), &args); err != nil {
		return args, Refuse(messages.CodeInvalidArguments, "the input has an argument of the wrong type: %v", err)
	}
	return args, nil
}

// Whole is a whole number. 10, 10.0 and 1e1 are the same value, as in a JSON Schema.
type Whole int

func (w *Whole) UnmarshalJSON(raw []byte) error {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return fmt.Errorf("want a whole number, got %.40s", raw)
	}
	*w = Whole(f)
	return nil
}

// Or returns the number, or standard if none was given.
func (w *Whole) Or(standard int) int {
	if w == nil {
		return standard
	}
	return int(*w)
}

// Plural formats a count: "1 file", "2,000 files".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return Thousands(n) + " " + thing + "s"
}

// Thousands formats n with a comma between every three digits.
func Thousands[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
