package rawjson

import (
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// like1 sets the rules of encoding/json, with one exception: an error may be reported before
// the whole text was read.
var like1 = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv1.ReportErrorsWithLegacySemantics(false))

// Unmarshal is like json.Unmarshal, but takes about a third of the time. After an error, v may
// be partly filled. Unmarshal is for messages that the fleet itself has sent.
func Unmarshal(data []byte, v any) error { return jsonv2.Unmarshal(data, v, like1) }

// anything sets the rules by which encoding/json accepts a text as JSON.
var anything = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// valid is like json.Valid, but takes about a third of the time.
func valid(raw []byte) bool { return jsontext.Value(raw).IsValid(anything...) }
