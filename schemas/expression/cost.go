package expression

import (
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// weigher sets the cost of operations that CEL counts as one step: comparing, searching and
// copying values of the input. Their cost depends on the size of the operands, which is known
// only at run time.
type weigher struct{}

func (weigher) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	cost := uint64(1)
	switch function {
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		cost += min(weight(args[0], MaxCost), weight(args[1], MaxCost))
	case operators.In:
		if _, isList := args[1].(traits.Lister); !isList {
			return nil
		}
		cost += weight(args[1], MaxCost)
	case operators.Add:
		if _, isList := result.(traits.Lister); isList {
			return nil // CEL joins two lists without a copy
		}
		cost += weight(result, MaxCost)
	case "size": // CEL counts through a text for its size; a list knows its size
		switch args[0].(type) {
		case types.String, types.Bytes:
			cost += weight(args[0], MaxCost)
		}
	case overloads.Matches:
		cost += matching(args[0], args[1])
	case "bytes", "string", "int", "uint", "double", "timestamp", "duration":
		cost += weight(args[0], MaxCost)
	default:
		return nil
	}
	return &cost
}

// weight is the cost of walking a value once: one unit for each value in it, and one for each ten
// bytes of text. It stops at the limit.
func weight(v ref.Val, limit uint64) uint64 {
	sum := uint64(1)
	switch v := v.(type) {
	case types.String:
		sum += uint64(len(v)) / 10
	case types.Bytes:
		sum += uint64(len(v)) / 10
	case traits.Lister:
		for it := v.Iterator(); sum < limit && it.HasNext() == types.True; {
			sum += weight(it.Next(), limit-sum)
		}
	case traits.Mapper:
		for it := v.Iterator(); sum < limit && it.HasNext() == types.True; {
			key := it.Next()
			sum += weight(key, limit-sum)
			if sum < limit {
				sum += weight(v.Get(key), limit-sum)
			}
		}
	}
	return min(sum, limit)
}
