package sandbox

import (
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox/enter"
)

var (
	everything = Machine{OS: "linux", Landlock: 7, Seccomp: true, PIDBound: true, Namespaces: Namespaces{User: true, Mount: true, PID: true, OwnPID: true}, UID: 1000, GID: 100}
	pod        = Machine{OS: "linux", Landlock: 7, Seccomp: true, WhyNot: "operation not permitted", UID: 1000, GID: 100}
)

// The plan for a machine lists each property that the machine cannot give, and no other.
func TestMissingLayersAreNamed(t *testing.T) {
	old := func(m Machine, abi int) Machine { m.Landlock = abi; return m }
	noFilter := pod
	noFilter.Seccomp = false
	root := everything
	root.Root, root.UID, root.GID = true, 0, 0
	oldRoot, oldUser, noPIDs := root, everything, root
	oldRoot.PIDBound, oldUser.PIDBound = false, false
	noPIDs.Namespaces, noPIDs.WhyNot = Namespaces{User: true, Mount: true}, "not permitted"
	bound := Policy{Limit: Bounds{Memory: 1 << 20, Processes: 50}}
	for name, tc := range map[string]struct {
		machine Machine
		policy  Policy
		want    []string // the beginning of each line, in order
	}{
		"everything":                  {everything, Policy{Write: []string{"/w"}, Protect: []string{"/w/.git/hooks"}, Hide: []string{"/w/key"}}, nil},
		"a restricted pod":            {pod, Policy{Write: []string{"/w"}}, []string{"files: commands may change modes"}},
		"protected paths in a pod":    {pod, Policy{Write: []string{"/w"}, Protect: []string{"/w/.git/hooks"}}, []string{"files: commands may change modes", "files: protected paths"}},
		"a key in a readable place":   {pod, Policy{Read: []string{"/w"}, Hide: []string{"/w/key"}}, []string{"files: commands may change modes", "files: /w/key may be read"}},
		"a key elsewhere":             {pod, Policy{Read: []string{"/w"}, Hide: []string{"/etc/key"}}, []string{"files: commands may change modes"}},
		"no Landlock":                 {old(everything, 0), Policy{}, []string{"files: there is no Landlock"}},
		"no Landlock in a pod":        {old(pod, 0), Policy{}, []string{"files: commands may change modes", "files: there is no Landlock", "processes: there is neither"}},
		"an old Landlock":             {old(pod, 2), Policy{}, []string{"files: commands may change modes", "files: commands may empty files", "processes: commands may kill"}},
		"no seccomp":                  {noFilter, Policy{}, []string{"files: commands may change modes", "processes: there is no seccomp", "network: there is no seccomp, so commands may use every network but TCP"}},
		"no seccomp, host":            {noFilter, Policy{Network: HostNetwork}, []string{"files: commands may change modes", "processes: there is no seccomp"}},
		"processes of root":           {root, bound, nil},
		"processes on an old kernel":  {oldUser, bound, nil},
		"of root on an old kernel":    {oldRoot, bound, []string{"limits: commands may have more than 50 processes until the worker looks and kills them, because the kernel does not bound them (the worker is root, and that needs Linux 6.14)"}},
		"of root without process ids": {noPIDs, bound, []string{"limits: commands may have more than 50 processes"}},
		"processes in a pod":          {pod, bound, []string{"files: commands may change modes", "limits: commands may have more than 50 processes"}},
		"another system":              {Machine{OS: "darwin"}, Policy{}, []string{"files: ", "processes: ", "network: ", "limits: "}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Resolve(tc.policy, tc.machine).Missing
			if len(got) != len(tc.want) {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(got[i].String(), want) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
		})
	}
}

// A machine cannot bound processes: the plan lists only the limit on memory, and a worker that
// requires limits does not start.
func TestLimitsThatHold(t *testing.T) {
	old := everything
	old.Root, old.PIDBound = true, false
	for _, tc := range []struct {
		machine Machine
		want    string
	}{{everything, "memory 1MB, 50 processes"}, {old, "memory 1MB"}} {
		layers := Resolve(Policy{Limit: Bounds{Memory: 1 << 20, Processes: 50}}, tc.machine).Layers
		if got := layers[len(layers)-1]; got != (Layer{Limits, tc.want}) {
			t.Errorf("got %v, want %s", got, tc.want)
		}
	}
	if err := Resolve(Policy{Limit: Bounds{Processes: 50}}, old).Lacks([]Property{Limits}); err == nil {
		t.Error("a worker that requires limits starts without them")
	}
}

// If the machine lacks a required property, the error names what is missing.
func TestRequiredProperties(t *testing.T) {
	plan := Resolve(Policy{Write: []string{"/w"}}, pod)
	if err := plan.Lacks([]Property{Processes, Network, Limits}); err != nil {
		t.Errorf("got %v", err)
	}
	if err := plan.Lacks([]Property{Files}); err == nil || !strings.Contains(err.Error(), "modes, owners and times") {
		t.Errorf("got %v", err)
	}
	m := pod
	if _, err := NewOn(Policy{Required: []Property{Files}}, m); err == nil {
		t.Error("a sandbox was made without what it requires")
	}
}

// The steps of the helper are in an order in which each of them is still permitted.
func TestOrderOfSteps(t *testing.T) {
	steps := Resolve(Policy{Read: []string{"/usr"}, Write: []string{"/w"}, Temp: "/t", Protect: []string{"/w/a/b/c"}, Hide: []string{"/k"}, Limit: Bounds{Memory: 1, Processes: 5, FileSize: 1, CPU: 1}}, everything).Steps
	at := func(op enter.Op) int { return slices.IndexFunc(steps, func(s enter.Step) bool { return s.Op == op }) }
	order := []enter.Op{enter.MapUser, enter.OwnMounts, enter.FreezeAll, enter.Writable, enter.Hide, enter.Pin, enter.ReadOnly, enter.MountShm, enter.MountProc, enter.Limit, enter.DropCaps, enter.NoNewPrivs, enter.Ruleset, enter.Allow, enter.Restrict, enter.Filter, enter.Fork}
	for i := 1; i < len(order); i++ {
		if at(order[i-1]) < 0 || at(order[i-1]) >= at(order[i]) {
			t.Errorf("step %c comes after %c, or is missing", order[i-1], order[i])
		}
	}
	var pinned []string
	for _, s := range steps {
		if s.Op == enter.Pin {
			pinned = append(pinned, s.Path)
		}
	}
	if !slices.Equal(pinned, []string{"/w/a", "/w/a/b"}) {
		t.Errorf("pinned are %q, want the folders above a protected path, from the top", pinned)
	}
}

func TestNote(t *testing.T) {
	box := &Box{Policy: Policy{Write: []string{"/w"}, Temp: "/t"}}
	if got := box.Note("touch: cannot touch '/x': Permission denied"); got != "[This ran in a sandbox, which lets it change only /w, $TMPDIR. It has no network.]" {
		t.Errorf("got %q", got)
	}
	const refused = "bash: line 1: /etc/x: Read-only file system\ndone"
	if box.Hint(refused) == "" || box.Hint(refused) != box.Note(refused) {
		t.Errorf("without a failure: %q", box.Hint(refused))
	}
	for _, words := range []string{"the answer was Permission denied", "/w/x: Permission denied", "cat: /proc/1/environ: Permission denied", "all well"} {
		if got := box.Hint(words); got != "" {
			t.Errorf("%s: %q", words, got)
		}
	}
	var none *Box
	if got := box.Note("no such file") + none.Note("Permission denied") + none.Hint(refused); got != "" {
		t.Errorf("got %q", got)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(enter.Encode([]enter.Step{{Op: enter.Allow, A: 1 << 40, B: 7, Path: "/usr"}, {Op: enter.Fork}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var steps []enter.Step
		for {
			s, rest, ok := enter.Decode(b)
			if !ok {
				break
			}
			steps, b = append(steps, s), rest
		}
		again := enter.Encode(steps)
		for _, want := range steps {
			got, rest, ok := enter.Decode(again)
			if !ok || got != want {
				t.Fatalf("got %v, want %v", got, want)
			}
			again = rest
		}
	})
}

// A policy lists hosts: the commands reach the proxy in the best way that the machine offers.
// Every way but a network namespace is listed as missing something, and no way opens the
// network itself.
func TestTheWayToTheProxy(t *testing.T) {
	own, noFilter, old := everything, pod, pod
	own.Namespaces.Net = true
	noFilter.Seccomp = false
	old.Landlock = abiNet - 1
	for name, tc := range map[string]struct {
		machine Machine
		way     Way
		missing string // beginning of what the network lacks; "": nothing
	}{
		"a network namespace":     {own, OwnSpace, ""},
		"a restricted pod":        {pod, OnePort, "commands may connect to the port of the worker's proxy on every machine"},
		"an old Landlock":         {old, NoWay, "commands reach no host at all"},
		"no seccomp":              {noFilter, NoWay, "there is no seccomp"},
		"namespaces without this": {everything, OnePort, "commands may connect to the port"},
	} {
		for _, reach := range []Reach{SomeHosts, AnyHost} {
			plan := Resolve(Policy{Network: reach, Port: 99}, tc.machine)
			listens := slices.ContainsFunc(plan.Steps, func(s enter.Step) bool { return s.Op == enter.Listen })
			port := slices.ContainsFunc(plan.Steps, func(s enter.Step) bool { return s.Op == enter.AllowPort && s.B == 99 })
			if plan.Way != tc.way || plan.Spaces.Net != (tc.way == OwnSpace) || listens != (tc.way == OwnSpace) || port != (tc.way == OnePort) {
				t.Errorf("%s, %s: way %d, %+v", name, reach, plan.Way, plan.Steps)
			}
			i := slices.IndexFunc(plan.Missing, func(m Missing) bool { return m.Property == Network })
			if tc.missing == "" && i >= 0 || tc.missing != "" && (i < 0 || !strings.HasPrefix(plan.Missing[i].What, tc.missing)) {
				t.Errorf("%s, %s: missing %q", name, reach, plan.Missing)
			}
		}
		if plan := Resolve(Policy{Network: NoNetwork}, tc.machine); plan.Way != NoWay || plan.Spaces.Net {
			t.Errorf("%s: there is a way out of none", name)
		}
	}
}
