package wire_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// encoded are the types that wire.Encode writes without reflection, each in the form it takes.
var encoded = []any{messages.Result{}, wire.Job{}, wire.Notice{}, wire.CallRecord{}, &wire.PlanRecord{}, messages.Reply{}, wire.AuditLines{}}

// Every field is written as encoding/json writes it, alone and with all others. So a new field that
// the encoder does not know fails here.
func TestEncodeKnowsEveryField(t *testing.T) {
	for _, v := range encoded {
		all := reflect.New(plain(v))
		for i := range all.Elem().NumField() {
			one := reflect.New(plain(v))
			fill(one.Elem().Field(i), 3)
			fill(all.Elem().Field(i), 3)
			same(t, v, one)
		}
		same(t, v, all)
		same(t, v, reflect.New(plain(v)))
	}
}

// plain returns the type of v, or that to which it points.
func plain(v any) reflect.Type {
	if t := reflect.TypeOf(v); t.Kind() != reflect.Pointer {
		return t
	}
	return reflect.TypeOf(v).Elem()
}

// same compares the two encodings of what p points to. like says whether Encode takes a pointer.
func same(t *testing.T, like any, p reflect.Value) {
	t.Helper()
	v := p.Interface()
	if reflect.TypeOf(like).Kind() != reflect.Pointer {
		v = p.Elem().Interface()
	}
	if diff := cmp.Diff(string(rawjson.MustMarshal(v)), string(wire.Encode(v))); diff != "" {
		t.Errorf("%T is encoded otherwise (-encoding/json +Encode):\n%s", v, diff)
	}
}

// fill gives a value and everything in it, some levels deep, another value than zero.
func fill(v reflect.Value, deep int) {
	switch {
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		v.SetBytes([]byte(` { "a b" : [ 1.50 , "\" \u2028" ] } `))
		return
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.FixedZone("", -5400))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x<\u2028\"\x01\x7f\xff>é")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-7)
	case reflect.Uint64:
		v.SetUint(1 << 63)
	case reflect.Float64:
		v.SetFloat(1e-7)
	case reflect.Pointer:
		if deep > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), deep-1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), deep-1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, deep-1)
		fill(value, deep-1)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), deep)
		}
	}
}

// Whatever was decoded is encoded as encoding/json encodes it.
func FuzzEncode(f *testing.F) {
	for _, v := range encoded {
		all := reflect.New(plain(v))
		fill(all.Elem(), 2)
		f.Add(rawjson.MustMarshal(all.Interface()))
	}
	f.Add([]byte(`{"input":"a b","duration_ms":1e21,"queue_ms":0.000001,"started":"0000-01-01T00:00:00+23:59","output":[ "\\" , " " ]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, v := range encoded {
			p := reflect.New(plain(v))
			if json.Unmarshal(in, p.Interface()) == nil {
				same(t, v, p)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	result := messages.Result{
		V: 1, CallID: "call_3", Tool: "look", Kind: messages.KindRead, Status: messages.StatusOK, Outcome: messages.Text("sunny, 21 degrees"),
		DurationMS: 0.127, QueueMS: 1.25, Attempt: 1, Started: time.Now(), Worker: "worker-7",
		Permission: &messages.Permission{Effect: messages.EffectAllow, Source: messages.SourceDefault}, Trail: &messages.Trail{ArgsHash: "0123456789abcdef"},
	}
	for name, v := range map[string]any{
		"result": result, "notice": wire.Notice{V: 1, Batch: "_.s.b", Result: &result},
		"job":  wire.Job{V: 1, Session: "s", Batch: "b", Tool: "look", Kind: messages.KindRead, Input: json.RawMessage(`{"city":"Berlin"}`), QueuedAt: time.Now(), NotAfter: time.Now()},
		"plan": &wire.PlanRecord{V: 1, Results: []messages.Result{result, result, result}},
	} {
		b.Run(name+"/by-reflection", func(b *testing.B) {
			for b.Loop() {
				rawjson.MustMarshal(v)
			}
		})
		b.Run(name+"/Encode", func(b *testing.B) {
			for b.Loop() {
				wire.Encode(v)
			}
		})
	}
}
