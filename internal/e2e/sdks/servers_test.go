package sdks

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// serverCall is a call of a tool of an MCP server, and a text that the answer must contain.
type serverCall struct{ tool, input, says string }

// callsOf returns calls of every served tool of the three servers. They are in the order of a
// conversation: a write may need the effect of the write before it.
func callsOf(dir string) map[string][]serverCall {
	in := func(text string) string { return strings.ReplaceAll(text, "DIR", dir) }
	entity := `{"name":"n","entityType":"t","observations":["o"]}`
	return map[string][]serverCall{
		"filesystem": {
			{"list_allowed_directories", `{}`, dir},
			{"create_directory", in(`{"path":"DIR/d"}`), "Successfully created"},
			{"write_file", in(`{"path":"DIR/d/a.txt","content":"one h\u00e9"}`), "Successfully wrote"},
			{"edit_file", in(`{"path":"DIR/d/a.txt","edits":[{"oldText":"one","newText":"two"}]}`), "+two"},
			{"move_file", in(`{"source":"DIR/d/a.txt","destination":"DIR/d/b.txt"}`), "Successfully moved"},
			{"read_file", in(`{"path":"DIR/d/b.txt"}`), "two h\u00e9"},
			{"read_text_file", in(`{"path":"DIR/d/b.txt"}`), "two h\u00e9"},
			{"read_media_file", in(`{"path":"DIR/d/b.txt"}`), "blob"},
			{"read_multiple_files", in(`{"paths":["DIR/d/b.txt"]}`), "two h\u00e9"},
			{"list_directory", in(`{"path":"DIR/d"}`), "b.txt"},
			{"list_directory_with_sizes", in(`{"path":"DIR/d"}`), "b.txt"},
			{"directory_tree", in(`{"path":"DIR/d"}`), "b.txt"},
			{"search_files", in(`{"path":"DIR","pattern":"**/b.txt"}`), "b.txt"},
			{"get_file_info", in(`{"path":"DIR/d/b.txt"}`), "size"},
		},
		"memory": {
			{"create_entities", `{"entities":[` + entity + `,{"name":"m","entityType":"t","observations":[]}]}`, "n"},
			{"create_relations", `{"relations":[{"from":"n","to":"m","relationType":"knows"}]}`, "knows"},
			{"add_observations", `{"observations":[{"entityName":"n","contents":["p"]}]}`, "p"},
			{"read_graph", `{}`, "knows"},
			{"search_nodes", `{"query":"n"}`, "n"},
			{"open_nodes", `{"names":["m"]}`, "m"},
			{"delete_observations", `{"deletions":[{"entityName":"n","observations":["p"]}]}`, "success"},
			{"delete_relations", `{"relations":[{"from":"n","to":"m","relationType":"knows"}]}`, "success"},
			{"delete_entities", `{"entityNames":["m"]}`, "success"},
		},
		"everything": {
			{"echo", `{"message":"h\u00e9"}`, "h\u00e9"},
			{"get-annotated-message", `{"messageType":"error"}`, "Error"},
			{"get-env", `{}`, "PATH"},
			{"get-resource-links", `{}`, "resource"},
			{"get-resource-reference", `{}`, "resource"},
			{"get-structured-content", `{"location":"Chicago"}`, "temperature"},
			{"get-sum", `{"a":2,"b":3}`, "5"},
			{"get-tiny-image", `{}`, "image"},
			{"trigger-long-running-operation", `{"duration":1,"steps":2}`, "completed"},
			{"trigger-long-running-operation", `{"duration":1,"steps":2}`, "completed"},
			{"gzip-file-as-resource", `{"name":"a.gz","data":"data:text/plain;base64,aGk=","outputType":"resource"}`, "gzip"},
			{"toggle-simulated-logging", `{}`, "logging"},
			{"toggle-subscriber-updates", `{}`, "updates"},
			{"trigger-elicitation-request", `{}`, "decline"}, // a server may not ask people
		},
	}
}

// The tools of three well-known MCP servers run through the six phases of a fleet. Reads run
// side by side, writes run in order, and a person is asked about a destructive call. If a
// server is killed in the middle of a write, the outcome is unknown, and the next call has a
// server again.
func TestServers(t *testing.T) {
	from := os.Getenv("TOOLFLEET_SDKS")
	if from == "" {
		t.Skip("TOOLFLEET_SDKS names no folder with the packages of package.json: .ci/run sdks installs them")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	t.Setenv("MEMORY_FILE_PATH", filepath.Join(dir, "memory.json"))
	packages, err := filepath.EvalSymlinks(from)
	must(t, err)
	entry := func(name string, args ...string) schemas.Server {
		program := filepath.Join(packages, "node_modules", ".bin", "mcp-server-"+name)
		return schemas.Server{
			Name: name, Prefix: name + "__", Command: append([]string{program}, args...), Processes: 1, Trusted: true, Env: []string{"MEMORY_FILE_PATH"},
			Sandbox: schemas.Sandbox{State: []string{dir}, Read: []string{packages}},
		}
	}
	slow := entry("everything")
	slow.Name, slow.Prefix, slow.Tools = "slow", "slow__", []string{"trigger-long-running-operation"}
	slow.Override = map[string]schemas.Override{slow.Tools[0]: {Kind: messages.KindWrite, TimeoutMS: 120_000}}
	calls := callsOf(dir)
	key, err := approval.NewKey()
	must(t, err)
	var opened *toolservers.Servers
	f := newFleet(t, func(f *testFleet) {
		place := toolservers.Place{Dir: dir, Box: worker.Place{Dir: dir}.ServerBox, Logger: f.log}
		opened, err = toolservers.Open(t.Context(), &f.tools, []schemas.Server{entry("filesystem", dir), entry("memory"), entry("everything"), slow}, place)
		must(t, err)
		t.Cleanup(opened.Close)
		people, err := approval.NewApprovers([]messages.Approver{{Name: "ann", Key: key.Public()}})
		must(t, err)
		f.people.Approvers, f.policy.Approvals = people, people
		f.policy.Rules, err = permission.New(permission.Config{
			Default: permission.Allow, Version: "v", Layers: []permission.Layer{{Source: "mcp", Rules: schemas.Rules{Ask: opened.Rules()}}},
		})
		must(t, err)
	})
	for _, s := range opened.States() {
		// The tool simulate-research-query runs only as a task of the protocol.
		tasks := len(s.Refused) == 1 && strings.HasPrefix(s.Refused[0], `"simulate-research-query": it runs only as a task`)
		if s.Down != "" || s.Tools == 0 || tasks != (s.Name == "everything") || !tasks && len(s.Refused) > 0 {
			t.Errorf("got %+v", s)
		}
	}
	asked := approveAll(f, key)
	for _, server := range []string{"filesystem", "memory", "everything"} {
		t.Run(server, func(t *testing.T) {
			tried := map[string]bool{}
			var list []string
			for i, c := range calls[server] {
				tried[server+"__"+c.tool] = true
				list = append(list, fmt.Sprintf(`{"id":"c%d","name":"%s__%s","input":%s}`, i, server, c.tool, c.input))
			}
			for _, served := range f.tools.Definitions() {
				if strings.HasPrefix(served.Name, server+"__") && !tried[served.Name] {
					t.Errorf("%s is not tried", served.Name)
				}
			}
			reply := f.all(t, server, list)
			for i, c := range calls[server] {
				got := reply.Results[i]
				said := string(got.Output) + fmt.Sprint(got.Content)
				if raw, _ := json.Marshal(got.Content); got.Content != nil {
					said += string(raw)
				}
				if got.Status != messages.StatusOK || !strings.Contains(said, c.says) {
					t.Errorf("%s: got %s %v %.300s, want %q", c.tool, got.Status, got.Err, said, c.says)
				}
				if c.tool == "trigger-long-running-operation" && !got.WasConcurrent {
					t.Errorf("%s, a read, ran alone", c.tool)
				}
			}
		})
	}
	destructive := []string{
		"filesystem__edit_file", "filesystem__move_file", "filesystem__write_file",
		"memory__delete_entities", "memory__delete_observations", "memory__delete_relations",
	}
	if got := asked(); !slices.Equal(got, destructive) {
		t.Errorf("people were asked about %q, want %q", got, destructive)
	}
	t.Run("kill", func(t *testing.T) { f.killedInAWrite(t) })
}

// all runs a batch and returns its reply with the full results.
func (f *testFleet) all(t *testing.T, id string, calls []string) messages.Reply {
	t.Helper()
	b := messages.Batch{
		V: messages.Version, ID: messages.BatchID(id), Session: messages.SessionID(id), Provider: messages.Canonical,
		Message: json.RawMessage(`{"calls":[` + strings.Join(calls, ",") + `]}`),
	}
	must(t, f.client.Submit(t.Context(), b))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	_, err := f.client.Await(ctx, b.Session, b.ID)
	must(t, err)
	reply, err := f.client.Get(ctx, b.Session, b.ID, client.FullResults())
	must(t, err)
	return reply
}

// approveAll approves every question until the test ends. asked returns the sorted names of
// the tools that a person was asked about.
func approveAll(f *testFleet, key approval.Key) (asked func() []string) {
	var mu sync.Mutex
	var tools []string // guarded by mu
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for pending, err := range f.client.WatchApprovals(ctx) {
			if err != nil {
				return
			}
			q, err := f.client.Approval(ctx, pending.Session, pending.Batch, pending.Index)
			if err != nil {
				continue // the question has been answered
			}
			d := approval.Answer(q, messages.VerdictApprove, "ann")
			d.At = time.Now().UTC()
			signed, err := key.Sign(d)
			if err == nil {
				_, err = f.client.Decide(ctx, signed)
			}
			if err != nil && ctx.Err() == nil {
				f.t.Errorf("approve %s: %v", q.Tool, err)
			}
			mu.Lock()
			tools = append(tools, q.Tool)
			mu.Unlock()
		}
	}()
	f.t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Compact(slices.Sorted(slices.Values(tools)))
	}
}

// killedInAWrite kills a server with SIGKILL while it runs a write, and checks the outcome and
// the next call.
func (f *testFleet) killedInAWrite(t *testing.T) {
	b := messages.Batch{
		V: messages.Version, ID: "kill", Session: "kill", Provider: messages.Canonical,
		Message: json.RawMessage(`{"calls":[{"id":"1","name":"slow__trigger-long-running-operation","input":{"duration":60,"steps":600}}]}`),
	}
	var once sync.Once
	killed := 0
	reply, err := f.client.Run(t.Context(), b, client.OnEvent(func(e messages.Event) {
		if e.Type == messages.EventProgress {
			once.Do(func() { killed = killChildren("mcp-server-everything") })
		}
	}))
	must(t, err)
	if got := reply.Results[0]; got.Status != messages.StatusOutcomeUnknown || killed == 0 {
		t.Errorf("after %d kills: got %s %v, want an unknown outcome", killed, got.Status, got.Err)
	}
	again := f.all(t, "again", []string{
		`{"id":"1","name":"everything__echo","input":{"message":"again"}}`, `{"id":"2","name":"slow__trigger-long-running-operation","input":{"duration":1,"steps":1}}`,
	})
	for _, got := range again.Results {
		if got.Status != messages.StatusOK {
			t.Errorf("after the kill: %s is %s %v", got.Tool, got.Status, got.Err)
		}
	}
}

// killChildren kills the child processes of the test whose command line contains words. It
// returns their number.
func killChildren(words string) (killed int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(children)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			pid, err := strconv.Atoi(child)
			if err == nil && strings.Contains(string(line), words) && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	return killed
}
