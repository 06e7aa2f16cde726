package schemas

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func asyncapi(t *testing.T) map[string]any {
	t.Helper()
	body, err := fs.ReadFile(Files(), "asyncapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return rawjson.Tree(asJSON(t, body)).(map[string]any)
}

// in returns the member at the end of a path of keys.
func in(t *testing.T, doc any, path ...string) any {
	t.Helper()
	v := lookup(doc, append([]string{""}, path...))
	if v == nil {
		t.Fatalf("asyncapi.yaml has no %s", strings.Join(path, "/"))
	}
	return v
}

func TestAsyncAPISubjectsAreOurs(t *testing.T) {
	var n wire.Names
	batch := wire.BatchKey{Tenant: "{tenant}", Session: "{session}", Batch: "{batch}"}
	const index = 77777
	want := map[string]string{
		"control": n.OfSession(wire.VerbControl, batch.Tenant, batch.Session), "ctl": n.OfSession(wire.VerbCtl, batch.Tenant, batch.Session),
		"read": n.Lane(false, "{pool}", batch.Call(index)), "write": n.Lane(true, "{pool}", batch.Call(index)),
		"notify": n.Notify("{coordinator}"), "queue": n.Queue("{pool}"), "dead": n.Dead(),
		string(wire.VerbList): n.OfTenant(wire.VerbList, batch.Tenant), "definitions": n.OfTenant(wire.VerbTools, batch.Tenant),
		"auditEnded": n.Ended(batch.Tenant, batch.Session, time.Unix(index*600, 0)), "auditAside": n.Aside(batch), "auditQuestion": n.Question(batch.Call(index)),
		"tools": "$KV." + n.Stream("tools") + ".{tool}", "inbox": "",
	}
	for _, v := range []wire.Verb{wire.VerbBatch, wire.VerbRun, wire.VerbGet, wire.VerbReply, wire.VerbRefused,
		wire.VerbEvent, wire.VerbPlan, wire.VerbFinal} {
		want[string(v)] = n.Of(v, batch)
	}
	for _, v := range []wire.Verb{wire.VerbCall, wire.VerbHand, wire.VerbResult, wire.VerbStop,
		wire.VerbDecide, wire.VerbShow, wire.VerbNews, wire.VerbAudit} {
		want[string(v)] = n.OfCall(v, batch.Call(index))
	}
	got := map[string]string{}
	for name, c := range in(t, asyncapi(t), "channels").(map[string]any) {
		channel := c.(map[string]any)
		got[name], _ = channel["address"].(string)
		var parameters []string
		for _, p := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(got[name], -1) {
			parameters = append(parameters, p[1])
		}
		declared, _ := channel["parameters"].(map[string]any)
		slices.Sort(parameters)
		if want, got := fmt.Sprint(parameters), fmt.Sprint(rawjson.SortedKeys(declared)); got != want {
			t.Errorf("channel %s declares the parameters %s, its address has %s", name, got, want)
		}
	}
	for name := range want {
		want[name] = strings.ReplaceAll(want[name], fmt.Sprint(index), "{index}")
		want[name] = strings.ReplaceAll(want[name], ".ended.{index}", ".ended.{span}")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("subjects of wire.Names and addresses:\n%s", diff)
	}
}

func TestAsyncAPIReferencesResolve(t *testing.T) {
	doc := asyncapi(t)
	used := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case []any:
			for i, item := range v {
				walk(fmt.Sprintf("%s/%d", path, i), item)
			}
		case map[string]any:
			for key, member := range v {
				walk(path+"/"+key, member)
			}
			ref, ok := v["$ref"].(string)
			if !ok {
				return
			}
			if local, isLocal := strings.CutPrefix(ref, "#"); isLocal {
				if lookup(doc, strings.Split(local, "/")) == nil {
					t.Errorf("%s: %s leads nowhere", path, ref)
				}
				return
			}
			name, isFile := strings.CutPrefix(ref, "./")
			if _, err := fs.Stat(Files(), name); err != nil || !isFile {
				t.Errorf("%s: there is no file %s", path, ref)
			}
			used[strings.TrimSuffix(name, ".json")] = true
		}
	}
	walk("", doc)
	for _, name := range rawjson.SortedKeys(used) { // and the schemas they refer to
		body, _ := fs.ReadFile(Files(), name+".json")
		for _, part := range regexp.MustCompile(`"\$ref": "([a-z-]+)\.json"`).FindAllSubmatch(body, -1) {
			used[string(part[1])] = true
		}
	}
	for _, name := range Names() {
		if !used[name] && name != "tools-file" && name != "policy-file" {
			t.Errorf("no message of asyncapi.yaml uses %s.json", name)
		}
	}
}

func TestAsyncAPIOperationsUseEveryChannel(t *testing.T) {
	doc := asyncapi(t)
	used := map[string]bool{}
	refOf := func(v any) string { return v.(map[string]any)["$ref"].(string) }
	check := func(name string, o map[string]any) {
		channel := refOf(o["channel"])
		for _, m := range o["messages"].([]any) {
			if ref := refOf(m); !strings.HasPrefix(ref, channel+"/messages/") {
				t.Errorf("operation %s uses %s, which is not of its channel %s", name, ref, channel)
			} else {
				used[ref] = true
			}
		}
	}
	for name, v := range in(t, doc, "operations").(map[string]any) {
		o := v.(map[string]any)
		check(name, o)
		if reply, ok := o["reply"].(map[string]any); ok {
			check(name, reply)
		}
	}
	for channel, c := range in(t, doc, "channels").(map[string]any) {
		for message := range c.(map[string]any)["messages"].(map[string]any) {
			if !used["#/channels/"+channel+"/messages/"+message] {
				t.Errorf("no operation uses the message %s of the channel %s", message, channel)
			}
		}
	}
}

func TestAsyncAPIHeadersAreOurs(t *testing.T) {
	schemas := in(t, asyncapi(t), "components", "schemas")
	types := in(t, schemas, "eventHeaders", "properties", messages.EventHeader, "enum")
	want := []any{string(messages.EventStart), string(messages.EventRunning), string(messages.EventProgress),
		string(messages.EventEnd), string(messages.EventResult), string(messages.EventReply), string(messages.EventAwaiting), string(messages.EventHook)}
	if diff := cmp.Diff(want, types); diff != "" {
		t.Errorf("event types:\n%s", diff)
	}
	in(t, schemas, "runHeaders", "allOf", "1", "properties", messages.ProgressHeader)
}
