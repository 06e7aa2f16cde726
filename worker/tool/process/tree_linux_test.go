package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// again is the environment variable that gives a second process of this test binary its role.
// The function rerun sets it.
const again = "PROCESS_TEST_AGAIN"

func TestMain(m *testing.M) {
	if os.Getenv(again) == "shielded" {
		if err := Shield(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// rerun runs tests of this binary again in another process, which the given function can
// change before its start.
func rerun(t *testing.T, role, tests string, change func(*exec.Cmd)) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^("+tests+")$", "-test.count=1")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), again + "=" + role, "NATS_CREDS=secret"}
	change(cmd)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EPERM) {
		t.Skipf("this process cannot become another user: %v", err)
	}
	if err != nil || strings.Contains(string(out), "no tests to run") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Between fork and exec, a starting command holds copies of its parent's files, including the
// streams of other commands. The end of another command must not kill the starting one.
func TestTheEndOfACommandDoesNotKillOneThatStarts(t *testing.T) {
	needs(t, "true")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 50 {
				if r, err := Run(t.Context(), Command{Args: []string{"true"}}); err != nil || r.ExitCode != 0 {
					t.Errorf("got %s, %v", r.Status(), err)
				}
			}
		})
	}
	wg.Wait()
}

// A command has ended: it keeps its process id until the rest of its tree is killed. Otherwise
// another process could get this id, as under a fork bomb, and would be killed.
func TestACommandKeepsItsIDUntilItsTreeIsKilled(t *testing.T) {
	cmd := exec.Command("true")
	tree := newTree(cmd, nil)
	defer tree.release()
	if err := tree.start(cmd); err != nil {
		t.Fatal(err)
	}
	tree.await(cmd)
	tree.kill()
	if st, err := readStat(tree.pid); err != nil || st.state != "Z" || st.parent != os.Getpid() {
		t.Errorf("after the kill the process is %+v, %v", st, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the command ended with %v", err)
	}
}

func TestFirstProcessReapsOrphans(t *testing.T) {
	needs(t, "unshare", "sh", "setsid")
	if out, err := exec.Command("unshare", "-pf", "--mount-proc", "true").CombinedOutput(); err != nil {
		t.Skipf("no namespace for process ids: %s", out)
	}
	rerun(t, "first", "TestAsFirstProcess", func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"unshare", "-pf", "--mount-proc", cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.Err = exec.LookPath("unshare")
	})
}

func TestAsFirstProcess(t *testing.T) {
	if os.Getenv(again) != "first" {
		t.Skip("TestFirstProcessReapsOrphans runs it")
	}
	if os.Getpid() != 1 {
		t.Fatalf("process %d", os.Getpid())
	}
	mine := exec.Command("true") // a child of other code, which has to get its exit status
	if err := mine.Start(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if _, err := sh(t.Context(), `(true &); (sleep 1000 &); (setsid sh -c '(sleep 1000 &)' &)`, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := mine.Wait(); err != nil {
		t.Errorf("another package's command: %v", err)
	}
	if _, err := sh(t.Context(), "true", nil); err != nil {
		t.Error(err)
	}
	entries, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if raw, err := os.ReadFile(entry); err == nil && !strings.HasPrefix(string(raw), "1 ") {
			t.Errorf("left over: %.60s", raw)
		}
	}
}

// Shield hides the worker's environment from processes of the worker's own user. Without it
// they could read it.
func TestShieldHidesTheEnvironment(t *testing.T) {
	needs(t, "sh", "setsid", "nohup", "env")
	rerun(t, "shielded", "TestShielded|TestNothingOutlivesTheCommand", func(cmd *exec.Cmd) {
		cmd.Dir = "/"
		if os.Getuid() == 0 { // root may read everything
			cmd.Path = "/proc/self/exe" // only root may read the folder of the binary
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
	})
}

func TestShielded(t *testing.T) {
	if os.Getenv(again) != "shielded" {
		t.Skip("TestShieldHidesTheEnvironment runs it")
	}
	r, err := sh(t.Context(), "cat /proc/$PPID/environ", func(c *Command) { c.Merge = true })
	if err != nil || r.ExitCode == 0 || strings.Contains(string(r.Stdout.Bytes()), "secret") {
		t.Errorf("got %s %q, %v", r.Status(), r.Stdout.Bytes(), err)
	}
}
