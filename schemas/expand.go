package schemas

import (
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// The validator cannot be cancelled, and it applies a branch of allOf, anyOf, oneOf and $ref
// again each time that it meets the branch. 25 levels of "allOf": [{"$ref": next}, {"$ref":
// next}] run for ever. Two bounds prevent endless validations. checkExpansions refuses, at
// compile time, a schema that grows like this for a single value. The step budget stops the
// validation if a recursive schema grows with each level of the value.

// checkExpansions refuses a schema that applies too many subschemas to a single value. It
// counts paths through the graph of references and branches, because the validator walks
// each path again.
func checkExpansions(root *jsonschema.Schema) error {
	var (
		paths = map[*jsonschema.Schema]int{} // finished counts; -1 while being counted
		seen  = map[*jsonschema.Schema]bool{}
		todo  = []*jsonschema.Schema{root}
		count func(*jsonschema.Schema) int
	)
	count = func(s *jsonschema.Schema) int {
		if n, ok := paths[s]; ok {
			return max(n, 0) // a loop of references: the validator reports it
		}
		paths[s] = -1
		n := 1
		for _, next := range samePlace(s) {
			n = min(n+count(next), MaxExpansions+1)
		}
		paths[s] = n
		return n
	}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[s] {
			continue
		}
		seen[s] = true
		if count(s) > MaxExpansions {
			return fmt.Errorf("its allOf, anyOf, oneOf and $ref expand to more than %d subschemas for a single value", MaxExpansions)
		}
		todo = append(append(todo, samePlace(s)...), insideOf(s)...)
	}
	return nil
}

// samePlace returns the subschemas that s applies to the value to which s itself applies.
func samePlace(s *jsonschema.Schema) []*jsonschema.Schema {
	all := present(s.Ref, s.RecursiveRef, s.DynamicRef, s.Not, s.If, s.Then, s.Else)
	all = append(all, s.AllOf...)
	all = append(all, s.AnyOf...)
	all = append(all, s.OneOf...)
	for _, sub := range s.DependentSchemas {
		all = append(all, sub)
	}
	for _, dep := range s.Dependencies {
		if sub, ok := dep.(*jsonschema.Schema); ok {
			all = append(all, sub)
		}
	}
	return all
}

// insideOf returns the subschemas that s applies to the members, items and names of its
// value.
func insideOf(s *jsonschema.Schema) []*jsonschema.Schema {
	all := present(s.PropertyNames, s.UnevaluatedProperties, s.Items2020, s.Contains, s.UnevaluatedItems, s.ContentSchema)
	all = append(all, s.PrefixItems...)
	for _, sub := range s.Properties {
		all = append(all, sub)
	}
	for _, sub := range s.PatternProperties {
		all = append(all, sub)
	}
	for _, either := range []any{s.AdditionalProperties, s.AdditionalItems, s.Items} {
		switch sub := either.(type) {
		case *jsonschema.Schema:
			all = append(all, sub)
		case []*jsonschema.Schema:
			all = append(all, sub...)
		}
	}
	return all
}

func present(schemas ...*jsonschema.Schema) []*jsonschema.Schema {
	var all []*jsonschema.Schema
	for _, s := range schemas {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// stepBudget limits the steps of one validation. It is an extension of the validator: each
// use of a subschema takes the price of the subschema from the budget. When the budget is
// spent, it panics, because nothing else stops the validator.
type stepBudget struct{ left int }

type spentError struct{}

func (spentError) Error() string {
	return fmt.Sprintf("the schema and the value together need more than %d steps", MaxChecks)
}

// Compile is called for each subschema that is an object. The price of a subschema includes
// its direct branches, because a branch that fails on its type ends before its own price is
// taken.
func (b *stepBudget) Compile(_ jsonschema.CompilerContext, m map[string]any) (jsonschema.ExtSchema, error) {
	price := 1
	for _, v := range m {
		if branches, ok := v.([]any); ok {
			price += len(branches)
		}
	}
	return step{b, price}, nil
}

type step struct {
	budget *stepBudget
	price  int
}

// Validate is called after everything below the subschema has been applied.
func (s step) Validate(jsonschema.ValidationContext, any) error {
	if s.budget.left -= s.price; s.budget.left < 0 {
		panic(spentError{})
	}
	return nil
}
