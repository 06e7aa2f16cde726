package expression

import (
	"regexp"

	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// matching returns the cost of a regular expression match. Each character of the text may be tried
// against every instruction of the expression, and "x{1,1000}" has thousands of them.
func matching(text, pattern ref.Val) uint64 {
	s, _ := text.Value().(string)
	p, _ := pattern.Value().(string)
	size, err := types.RegexProgramSize(p)
	if err != nil {
		return MaxCost
	}
	return uint64(1+len(s)/10) * uint64(1+size/2)
}

// bounded returns a match that fails before it starts if it would cost too much. CEL itself
// checks the cost only after the match has ended.
func bounded(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
		text, ok := args[0].(types.String)
		switch {
		case !ok:
			return types.MaybeNoSuchOverloadErr(args[0])
		case matching(text, args[1]) > MaxCost:
			return types.NewErr("cost limit exceeded")
		}
		return types.Bool(re.MatchString(string(text)))
	}), nil
}

// matches applies bounded to both forms: text.matches(pattern), matches(text, pattern).
var matches = []*interpreter.RegexOptimization{
	{Function: overloads.Matches, OverloadID: overloads.Matches, RegexIndex: 1, Factory: bounded},
	{Function: overloads.Matches, OverloadID: overloads.MatchesString, RegexIndex: 1, Factory: bounded},
}
