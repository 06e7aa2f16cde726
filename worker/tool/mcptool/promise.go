package mcptool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Promise turns a definition of a server into a tool. ask says whether a person has to allow
// each call of the tool.
func Promise(server schemas.Server, d Definition) (tool schemas.Tool, ask bool, err error) {
	tool = schemas.Tool{
		Name: server.Prefix + d.Name, Description: cmp.Or(d.Description, d.Title), InputSchema: d.InputSchema,
		Kind: messages.KindWrite, Pool: server.Pool,
	}
	switch {
	case server.Program:
		err = ownWords(&tool, d.Meta)
	case server.Trusted:
		ask = annotated(&tool, d)
	default:
		ask = true
	}
	if err != nil {
		return tool, false, err
	}
	own := server.Override[d.Name]
	if own.Kind != "" && own.Kind != messages.KindWrite {
		tool.OnCrash, ask = "", false
	}
	tool.Kind = cmp.Or(own.Kind, tool.Kind)
	tool.OnCrash = cmp.Or(own.OnCrash, tool.OnCrash)
	tool.Risk = cmp.Or(own.Risk, tool.Risk)
	tool.Pool = cmp.Or(own.Pool, tool.Pool)
	tool.TimeoutMS = cmp.Or(own.TimeoutMS, tool.TimeoutMS)
	tool.MaxOutput = cmp.Or(own.MaxOutput, tool.MaxOutput)
	tool.Results = cmp.Or(own.Results, tool.Results)
	if own.Ask != nil {
		ask = *own.Ask
	}
	if tool, err = tool.WithDefaults(); err != nil {
		return tool, false, err
	}
	if _, err := schemas.Compile(tool.InputSchema); err != nil {
		return tool, false, fmt.Errorf("its input schema: %w", err)
	}
	return tool, ask, nil
}

// annotated applies the annotations of a trusted server to a tool. ask says whether a person
// has to allow each call.
func annotated(tool *schemas.Tool, d Definition) (ask bool) {
	if d.ReadOnly {
		tool.Kind = messages.KindRead
		return false
	}
	if d.Idempotent {
		tool.OnCrash = messages.OnCrashIdempotent
	}
	return d.Destructive == nil || *d.Destructive
}

// ownWords applies the members of a program's `_meta` that are for toolfleet.
func ownWords(tool *schemas.Tool, meta map[string]any) error {
	words := map[string]string{}
	for name, value := range meta {
		text, ok := value.(string)
		if !slices.Contains([]string{"kind", "on_crash", "risk", "timeout", "pool", "results", "checks"}, name) {
			continue // a later version of toolfleet may know this member
		}
		if !ok {
			return fmt.Errorf("its _meta: %s%s is no text", metaPrefix, name)
		}
		words[name] = text
	}
	tool.Kind = cmp.Or(messages.Kind(words["kind"]), tool.Kind)
	tool.OnCrash = messages.OnCrash(words["on_crash"])
	tool.Risk = messages.Tier(words["risk"])
	tool.Pool = cmp.Or(tool.Pool, words["pool"])
	tool.Results = schemas.Results(words["results"])
	if _, err := checksOf(meta); err != nil {
		return err
	}
	if text := words["timeout"]; text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Millisecond {
			return fmt.Errorf("its _meta: %stimeout is %.40q; want a duration such as 5s", metaPrefix, text)
		}
		tool.TimeoutMS = d.Milliseconds()
	}
	if tool.OnCrash != "" && tool.Kind != messages.KindWrite {
		return fmt.Errorf("its _meta: %son_crash is for writes, and its kind is %.40q", metaPrefix, tool.Kind)
	}
	return nil
}
