package expression

import (
	"encoding/json"
	"math/big"
	"strconv"

	"cel.dev/cel-go/common/types"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Call holds what expressions can read of a call.
type Call struct {
	Tool    string
	Kind    messages.Kind
	Pool    string
	Input   json.RawMessage
	Session messages.SessionID
	Tenant  messages.TenantID // the tenant token of the agent
	User    string            // the user for whom the tenant's program asks; "": not known
	Labels  map[string]string // of the batch
}

// Subject is a call whose input was decoded once. Any number of programs can be evaluated on
// it.
type Subject struct {
	variables map[string]any
	err       error // set if the input cannot be read, so that every evaluation fails
}

// NewSubject reads a call. It goes through the whole input, so call it only if there is a program
// to evaluate.
func NewSubject(c Call) *Subject {
	input, err := members(c.Input)
	return &Subject{map[string]any{
		"input": input, "tool.name": c.Tool, "tool.kind": string(c.Kind), "tool.pool": c.Pool,
		"session.id": string(c.Session), "principal.id": string(c.Tenant), "principal.user": c.User, "labels": c.labels(),
	}, err}
}

// labels returns the labels, or an empty map if the call has none.
func (c Call) labels() map[string]string {
	if c.Labels == nil {
		return map[string]string{}
	}
	return c.Labels
}

func members(raw json.RawMessage) (map[string]any, error) {
	if rawjson.Check(raw) != nil {
		return nil, errInput
	}
	input, isObject := rawjson.Tree(raw).(map[string]any)
	if !isObject {
		return nil, errInput
	}
	_, err := convert(input)
	return input, err
}

// convert replaces every json.Number in v by its int or double, in place.
func convert(v any) (_ any, err error) {
	switch v := v.(type) {
	case json.Number:
		return number(string(v))
	case map[string]any:
		for key := range v {
			if v[key], err = convert(v[key]); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range v {
			if v[i], err = convert(v[i]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// number returns an int if the value is whole and fits into 64 bits, else a double. The
// notation does not matter: 50, 50.0 and 5e1 are the same int.
func number(text string) (any, error) {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, errInput
	}
	// Check the exact value, because converting to a double may round it to a whole number.
	exact, ok := new(big.Rat).SetString(text)
	if ok && exact.IsInt() && exact.Num().IsInt64() {
		return exact.Num().Int64(), nil
	}
	// A number with more digits than a double keeps becomes an error value, so an expression
	// that uses it fails. Otherwise 100.00000000000000000001 would not be more than 100.
	shortest, _ := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
	if double := new(big.Rat).SetFloat64(f); !ok || double == nil || exact.Cmp(double) != 0 && (shortest == nil || exact.Cmp(shortest) != 0) {
		return types.NewErr("a number has more digits than can be compared"), nil
	}
	return f, nil
}
