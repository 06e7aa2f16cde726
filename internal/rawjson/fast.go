package rawjson

import (
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// like1 sets the rules of encoding/json, except that an error may be reported before the
// end of the text.
var like1 = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv1.ReportErrorsWithLegacySemantics(false))

// Unmarshal is like json.Unmarshal, and takes about a third of the time. After an error v may be
// partly filled. It is for the messages that the fleet sends itself.
func Unmarshal(data []byte, v any) error { return jsonv2.Unmarshal(data, v, like1) }

// anything sets the rules of encoding/json for what counts as JSON.
var anything = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// valid is like json.Valid, in about a third of the time.
func valid(raw []byte) bool { return jsontext.Value(raw).IsValid(anything...) }
