package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/coordinator/announced"
	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Catalogues keeps the definitions that were given to agents, by digest.
type Catalogues interface {
	Put(ctx context.Context, tools schemas.Catalog) (digest string, err error)
}

// listTools answers with the tool definitions that an agent may give to its model.
func (h *Handlers) listTools(ctx context.Context, m bus.Msg) {
	list, err := h.toolList(ctx, m)
	if err == nil {
		h.conn.AnswerInChunks(m, list)
		return
	}
	refusal, ok := err.(*messages.Refusal)
	code := "400"
	if !ok {
		h.log.Warn("the definitions of tools could not be read; the requester is asked to try again", "err", err)
		code, refusal = "503", &messages.Refusal{Class: messages.ClassBusy, Message: "The tools cannot be read at this moment. Try again.", RetryAfterMS: 1000}
	}
	h.conn.AnswerError(m, string(refusal.Class), code, rawjson.MustMarshal(messages.ToolList{V: messages.Version, Error: refusal}))
}

// toolList makes the answer. It works on one request of each tenant at a time. If the error is
// not a *messages.Refusal, it may be temporary.
func (h *Handlers) toolList(ctx context.Context, m bus.Msg) (list json.RawMessage, err error) {
	tenant := strings.TrimPrefix(m.Subject, h.names.OfTenant(wire.VerbTools, ""))
	if !messages.IsToken(tenant) {
		return nil, &messages.Refusal{Class: messages.ClassSubjectMismatch, Message: fmt.Sprintf("The subject names no tenant: %.80q is not a token.", tenant)}
	}
	return h.limited(ctx, tenant, func() (any, error) { return h.toolListOf(ctx, m) })
}

func (h *Handlers) toolListOf(ctx context.Context, m bus.Msg) (messages.ToolList, error) {
	list := messages.ToolList{V: messages.Version}
	var want messages.GetTools
	if len(m.Data) > 0 {
		if err := json.Unmarshal(m.Data, &want); err != nil {
			return list, &messages.Refusal{Class: messages.ClassMalformedMessage, Message: "tools: " + err.Error()}
		}
	}
	list.Provider = cmp.Or(want.Provider, messages.Canonical)
	codec, err := provider.For(list.Provider)
	if err != nil {
		return list, err
	}
	tools, err := h.offered(ctx, strings.TrimPrefix(m.Subject, h.names.OfTenant(wire.VerbTools, "")), want.Names)
	if err != nil {
		return list, err
	}
	list.Tools, err = codec.ToolsWith(tools, export.Options{Strict: export.Strict(want.Strict), Cache: want.Cache})
	if err != nil {
		return list, &messages.Refusal{Class: messages.ClassMalformedMessage, Message: "tools: " + err.Error() + "; names selects tools"}
	}
	catalog, err := schemas.NewCatalog(tools...)
	if err == nil {
		list.Digest, err = h.catalogues.Put(ctx, catalog)
	}
	return list, err
}

// offered returns the tools with these names that a tenant may call, or all of them if names
// is empty. It leaves out tools that the fleet's policy denies; workers announce which tools
// these are.
func (h *Handlers) offered(ctx context.Context, tenant string, names []string) ([]schemas.Tool, error) {
	defined, err := values(ctx, h, bus.BucketTools, func(_ string, value []byte) (a schemas.Announcement, err error) {
		return a, json.Unmarshal(value, &a)
	})
	if err != nil {
		return nil, err
	}
	workers, err := values(ctx, h, bus.BucketWorkers, wire.ReadPresence)
	if err != nil {
		return nil, err
	}
	var present []wire.Presence
	for _, key := range rawjson.SortedKeys(workers) {
		w, _ := h.cfg.Owners.Bound(workers[key])
		if w.Tenant == "" || w.Tenant == tenant && len(w.Pools) > 0 {
			present = append(present, w)
		}
	}
	queues := h.cfg.Owners.Fleet(present)
	served := func(t schemas.Tool) bool {
		return queues.Serves(toolset.Tool{Pool: t.Pool, Name: t.Name, Digest: t.Digest, Tenant: tenant})
	}
	tools := schemas.Offered(announced.View(tenant, h.cfg.Owners, defined, served), present, served)
	if len(names) > 0 {
		tools = slices.DeleteFunc(tools, func(t schemas.Tool) bool { return !slices.Contains(names, t.Name) })
	}
	return tools, nil
}

// values returns the values of a bucket by their keys. It leaves out values that cannot be read, as
// drivers do, so that one bad announcement does not hide the others.
func values[T any](ctx context.Context, h *Handlers, bucket string, read func(key string, value []byte) (T, error)) (map[string]T, error) {
	found, err := h.conn.Values(ctx, h.conn.Names().Stream(bucket))
	if err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", bucket, err)
	}
	all := make(map[string]T, len(found))
	for _, key := range rawjson.SortedKeys(found) {
		v, err := read(key, found[key])
		if err != nil {
			h.log.Error("a value cannot be read and is left out of the definitions", "bucket", bucket, "key", key, "err", err)
			continue
		}
		all[key] = v
	}
	return all, nil
}
