package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Only a coordinator may publish jobs. A job that another identity publishes reaches no queue,
// so it runs nowhere.
func TestAJobByHandRunsNothing(t *testing.T) {
	s := newAttackedFleet(t)
	defer s.close()
	s.openQuestion()
	var n wire.Names
	job := n.Lane(true, "nobody", s.victim().Call(7)) // no worker takes jobs of this queue
	jobs := func() int {
		found, err := s.operator.All(t.Context(), "TOOLFLEET_JOBS", job)
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	for _, who := range append([]string{"http", "operator"}, outsiders...) {
		in := s.ids.Intruder(s.srv, who)
		in.Publish(job, in.Inbox(), nil, []byte(`{}`))
		in.Flush()
		if jobs() != 0 {
			t.Fatalf("%s has published a job", who)
		}
	}
	coordinator := s.ids.Intruder(s.srv, "coordinator")
	coordinator.Publish(job, "", nil, []byte(`{}`))
	s.until("the job of a coordinator is in its queue", func() bool { return jobs() == 1 })
}

// An attacker has the key of a worker. As docs/threat-model.md says, the attacker can write
// results of any call, and can empty the store of large bodies with a header.
func TestWhatATakenOverWorkerCanDo(t *testing.T) {
	ids := natstest.NewIdentities(t)
	s := newAttackedFleetAs(t, ids)
	defer s.close()
	s.openQuestion()
	in := s.ids.Intruder(s.srv, "worker")
	stored := func(stream, subject string) int {
		found, err := s.operator.All(t.Context(), stream, subject)
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	in.Publish("toolfleet.result.globex.s.b.0", "", nil, []byte(`{}`))
	s.until("a result of a call that this worker never had is stored", func() bool { return stored("TOOLFLEET_RESULTS", "toolfleet.result.globex.s.b.0") == 1 })
	for range 3 {
		in.Publish("$O.TOOLFLEET_OBJECTS.C.x", "", nil, []byte("a body"))
	}
	s.until("the large bodies are stored", func() bool { return stored("OBJ_TOOLFLEET_OBJECTS", ">") == 3 })
	in.Publish("$O.TOOLFLEET_OBJECTS.M.x", "", map[string][]string{"Nats-Rollup": {"all"}}, nil)
	s.until("the large bodies are deleted", func() bool { return stored("OBJ_TOOLFLEET_OBJECTS", ">") == 1 })
}

var testInSource = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// docs/threat-model.md names only tests that exist, and each line of its tables names one.
func TestTheThreatModelNamesTests(t *testing.T) {
	page, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`Test\w+`).FindAllString(string(page), -1) {
		named[name] = true
	}
	if len(named) < 15 {
		t.Errorf("the page names %d tests", len(named))
	}
	for _, line := range strings.Split(string(page), "\n") {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| It ") && !strings.Contains(line, "Test") {
			t.Errorf("nothing shows %q", line)
		}
	}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, found := range testInSource.FindAllSubmatch(source, -1) {
			delete(named, string(found[1]))
		}
		return err
	})
	if err != nil || len(named) > 0 {
		t.Errorf("these tests are gone: %v, %v", named, err)
	}
}
