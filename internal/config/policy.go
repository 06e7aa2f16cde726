package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/secrets"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// Policy decides what is allowed. The policy file and the permissions of the settings belong
// to the platform. The rules of the tools file belong to the owner of the tools.
type Policy struct {
	Default   string // allow, ask or deny
	Layers    []permission.Layer
	Approvers []messages.Approver
	Tests     []schemas.PolicyTest
	GoHooks   []hook.Hook // hooks in Go, besides those of the policy file
	// Sandbox limits the sandboxes of all tools. Nil: there is no limit.
	Sandbox *schemas.Sandbox

	version string // from the policy file
	hooks   []schemas.HookEntry
	dir     string // the folder to which paths of hook programs are relative
	secrets secrets.Folder
}

// ReadPolicy reads the policy of the settings. The rules of the tools file are its last layer,
// and toolsName names them in messages. The default effect comes from the policy file or from
// the settings. If both have one, the stricter one counts.
func (c *Config) ReadPolicy(toolsName string, tools schemas.Rules) (*Policy, error) {
	p := &Policy{Default: c.Permissions.Default, dir: ".", secrets: secrets.Folder(c.Secrets)}
	if name := string(c.Policy); name != "" {
		body, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the policy file: %w; --policy names another", err)
		}
		file, err := schemas.ParsePolicy(name, body)
		if err != nil {
			return nil, err
		}
		if file.Default != "" && !c.Given("permissions.default") {
			p.Default = file.Default
		}
		p.Default = stricter(p.Default, file.Default)
		p.Sandbox = file.Sandbox
		p.Approvers, p.Tests, p.hooks, p.version, p.dir = file.Approvers, file.Tests, file.Hooks, file.Version, filepath.Dir(name)
		p.Layers = append(p.Layers, permission.Layer{Source: filepath.Base(name), Rules: file.Rules})
	}
	own, err := c.shortForms()
	if err != nil {
		return nil, err
	}
	p.Layers = append(p.Layers, own, permission.Layer{Source: filepath.Base(toolsName), Rules: tools, Below: true})
	p.Layers = slices.DeleteFunc(p.Layers, func(l permission.Layer) bool {
		return len(l.Rules.Deny)+len(l.Rules.Ask)+len(l.Rules.Allow)+len(l.Rules.Risk) == 0
	})
	return p, nil
}

// stricter returns the stricter of two default effects. "" counts as no effect.
func stricter(a, b string) string {
	for _, effect := range []string{"deny", "ask", "allow"} {
		if a == effect || b == effect {
			return effect
		}
	}
	return ""
}

// shortForms parses the permissions of the settings into a layer.
func (c *Config) shortForms() (permission.Layer, error) {
	layer := permission.Layer{Source: "settings"}
	if c.file != "" {
		layer.Source = filepath.Base(c.file)
	}
	var errs []error
	read := func(key string, list []string) (rules []schemas.RuleEntry) {
		for _, short := range list {
			rule, err := schemas.ParseRule(short)
			if err != nil {
				errs = append(errs, fmt.Errorf("permissions.%s: %w", key, err))
			}
			rules = append(rules, rule)
		}
		return rules
	}
	layer.Rules = schemas.Rules{Deny: read("deny", c.Permissions.Deny), Ask: read("ask", c.Permissions.Ask), Allow: read("allow", c.Permissions.Allow)}
	return layer, errors.Join(errs...)
}

// Permissions compiles the rules of all layers. roots are the paths of the folder in which
// file tools start. Without file tools, roots is empty.
func (p *Policy) Permissions(roots ...string) (permission.Rules, error) {
	return permission.New(permission.Config{Default: permission.Effect(p.Default), Roots: roots, Version: p.Version(), Layers: p.Layers})
}

// Needs returns the largest number of approvers that the rules may require for a call: 0 if no
// rule asks, 2 if a rule has the tier critical.
func (p *Policy) Needs() (people int) {
	if p.Default == string(permission.Ask) {
		people = 1
	}
	for _, l := range p.Layers {
		if len(l.Rules.Ask) > 0 {
			people = max(people, 1)
		}
		for _, r := range l.Rules.Risk {
			switch r.Tier {
			case messages.TierHigh:
				people = max(people, 1)
			case messages.TierCritical:
				people = 2
			}
		}
	}
	return people
}

// Version returns a digest of all parts of the policy that decide, or "" if there are none. A
// question to people is bound to the version, so an approval under one policy does not count
// under another. File names and line numbers are not part of the digest, because members of a
// fleet may keep the same policy in different places. The digest of the rules of the tools
// file is appended: see [wire.PlatformPolicy].
func (p *Policy) Version() (version string) {
	var platform, tools []schemas.Rules
	for _, l := range p.Layers {
		if l.Below {
			tools = append(tools, placeless(l.Rules))
		} else {
			platform = append(platform, placeless(l.Rules))
		}
	}
	if p.version != "" || p.Default != string(permission.Allow) || len(platform) > 0 {
		version = digest([]any{p.version, p.Default, platform})
	}
	if len(tools) > 0 {
		version += wire.PolicyOfTools + digest(tools)
	}
	return version
}

func digest(v any) string { return messages.Digest(rawjson.MustMarshal(v))[:16] }

// placeless returns the rules without their line numbers.
func placeless(r schemas.Rules) schemas.Rules {
	rules := func(list []schemas.RuleEntry) []schemas.RuleEntry {
		list = slices.Clone(list)
		for i := range list {
			list[i].Line = 0
		}
		return list
	}
	risk := slices.Clone(r.Risk)
	for i := range risk {
		risk[i].Line = 0
	}
	return schemas.Rules{Deny: rules(r.Deny), Ask: rules(r.Ask), Allow: rules(r.Allow), Risk: risk}
}

func (p *Policy) approvers() (approval.Approvers, error) { return approval.NewApprovers(p.Approvers) }
