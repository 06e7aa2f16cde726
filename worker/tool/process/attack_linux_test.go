package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// ground is where attacks happen: a working folder, and a folder outside of it.
type ground struct {
	root, outside, key string
	tcp, unix          string // addresses that a command must not reach
	box                *sandbox.Box
	bare               bool // there is no namespace for process ids
}

const canary = "cnry-of-the-worker"

// newGround makes a ground. Bare: as on a machine that refuses namespaces.
func newGround(t *testing.T, bare bool) *ground {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{root: filepath.Join(dir, "root"), outside: filepath.Join(dir, "outside"), key: filepath.Join(dir, "outside", "worker.nk")}
	for _, name := range []string{filepath.Join(g.root, ".git", "hooks"), g.outside, filepath.Join(dir, "temp")} {
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{g.key: canary, filepath.Join(g.outside, "file"): "untouched", filepath.Join(g.root, ".git", "config"): "untouched", filepath.Join(g.root, ".bashrc"): "untouched"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	short, err := os.MkdirTemp("", "tf") // the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	for _, l := range []struct {
		network, address string
		to               *string
	}{{"tcp", "127.0.0.1:0", &g.tcp}, {"unix", filepath.Join(short, "s"), &g.unix}} {
		listener, err := net.Listen(l.network, l.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		*l.to = listener.Addr().String()
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				t.Errorf("a command connected to %s", l.network)
				c.Close()
			}
		}()
	}
	m := sandbox.Local()
	if m.Landlock < 6 || !m.Seccomp {
		t.Skipf("this machine has Landlock with ABI %d, and seccomp: %v", m.Landlock, m.Seccomp)
	}
	g.bare = bare || !m.Namespaces.PID
	if bare {
		m.Namespaces, m.WhyNot = sandbox.Namespaces{}, "refused by the test"
	}
	policy := sandbox.Policy{
		Read: sandbox.SystemPaths(os.Getenv("HOME"), os.Getenv("PATH")), Write: []string{g.root}, Temp: filepath.Join(dir, "temp"), Hide: []string{g.key},
		Limit: sandbox.Bounds{Memory: 256 << 20, Processes: 200, FileSize: 8 << 20, Disk: 64 << 20},
	}
	for _, name := range sandbox.ProtectedPaths {
		policy.Protect = append(policy.Protect, filepath.Join(g.root, name))
	}
	if g.box, err = sandbox.NewOn(policy, m); err != nil {
		t.Fatal(err)
	}
	return g
}

// run runs a script in the sandbox. Its variables say what to attack.
func (g *ground) run(t *testing.T, script string) (Result, string) {
	t.Helper()
	return g.runUntil(t, script, "")
}

// runUntil is run, but the script is stopped when it has printed enough. "": it runs to its end.
func (g *ground) runUntil(t *testing.T, script, enough string) (Result, string) {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	var printed []byte
	t.Helper()
	host, port, _ := net.SplitHostPort(g.tcp)
	worker := os.Getpid()
	if !g.bare && worker < 1000 {
		worker = 1 << 22 // in a namespace of its own the command has the low process ids itself
	}
	r, err := Run(ctx, Command{
		Args: []string{"bash", "-c", script}, Dir: g.root, Merge: true, Sandbox: g.box,
		OnStdout: func(chunk []byte) {
			if printed = append(printed, chunk...); enough != "" && strings.Contains(string(printed), enough) {
				stop(errStop)
			}
		},
		Env: []string{
			"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + os.Getenv("HOME"), "OUT=" + g.outside, "KEY=" + g.key, "WORKER=" + fmt.Sprint(worker),
			"HOST=" + host, "PORT=" + port, "SOCKET=" + g.unix, "GIT_CONFIG_GLOBAL=/dev/null",
		},
	})
	if err != nil && !errors.Is(err, errStop) {
		t.Fatalf("%s: %v", script, err)
	}
	return r, string(printed)
}

// attacks are scripts that must not succeed: each prints "won" if it does. A mark says that the
// layer that stops it needs a namespace; without one the plan names it as missing.
var attacks = []struct{ name, script, needs string }{
	{"the worker's environment", `for p in /proc/[0-9]*; do [ $p = /proc/$$ ] || [ $p = /proc/1 ] || tr '\0' '\n' <$p/environ; done 2>/dev/null | grep -q '^WORKERS_SECRET=' && echo won`, ""},
	{"the environment of another tool", `for p in /proc/[0-9]*; do tr '\0' '\n' <$p/environ; done 2>/dev/null | grep -q '^ANOTHER_TOOLS_SECRET=' && echo won`, ""},
	{"kill all", `kill -9 -1; true`, ""},
	{"the worker's memory", `head -c 1 /proc/$WORKER/mem >/dev/null 2>&1 && echo won; cat /proc/$WORKER/maps >/dev/null 2>&1 && echo won`, ""},
	{"the worker's folders", `ls /proc/$WORKER/root/ /proc/$WORKER/cwd/ /proc/$WORKER/fd/ >/dev/null 2>&1 && echo won`, ""},
	{"the worker's command line", `grep -qs . /proc/$WORKER/cmdline && [ $WORKER != $$ ] && grep -qa 'test' /proc/$WORKER/cmdline && echo won`, ""},
	{"the key", `grep -q cnry $KEY && echo won`, ""},
	{"the key, by a link", `ln -s $KEY key; grep -q cnry key && echo won`, ""},
	{"the key, by a hard link", `ln $KEY key && grep -q cnry key && echo won`, ""},
	{"the key, by the root of a process", `grep -q cnry /proc/self/root$KEY && echo won`, ""},
	{"the key, by a folder that is open", `exec 9<$OUT && grep -q cnry /proc/self/fd/9/worker.nk && echo won`, ""},
	{"a file outside", `echo x >$OUT/file && echo won`, ""},
	{"a new file outside", `echo x >$OUT/new && echo won`, ""},
	{"a file outside, by a link", `ln -s $OUT/file f; echo x >f && echo won`, ""},
	{"a file outside, emptied", `truncate -s 0 $OUT/file && echo won`, ""},
	{"a file outside, removed", `rm -f $OUT/file && echo won`, ""},
	{"a file outside, renamed", `mv $OUT/file . && echo won`, ""},
	{"the mode of a file outside", `chmod 777 $OUT/file && echo won`, "files"},
	{"the time of a file outside", `touch -d 2001-01-01 $OUT/file && echo won`, "files"},
	{"home", `echo x >>~/.bashrc && echo won`, ""},
	{"the temporary folder of all", `touch /tmp/toolfleet-attack && rm /tmp/toolfleet-attack && echo won`, ""},
	{"shared memory of all", `ls /dev/shm/toolfleet-canary && echo won`, ""},
	{"passwords", `cat /etc/shadow && echo won`, ""},
	{"kill the worker", `kill -0 $WORKER && [ $WORKER != $$ ] && echo won; kill -CONT $WORKER && echo won`, ""},
	{"the worker's limits", `python3 -c 'import resource,os; resource.prlimit(int(os.environ["WORKER"]), resource.RLIMIT_CPU)' && echo won`, ""},
	{"the worker's processors", `python3 -c 'import os; w=int(os.environ["WORKER"]); os.sched_setaffinity(w, os.sched_getaffinity(w))' && echo won`, ""},
	{"the worker's scheduler", `python3 -c 'import os; w=int(os.environ["WORKER"]); os.sched_setscheduler(w, os.SCHED_BATCH, os.sched_param(0))' && echo won`, ""},
	{"the worker's priority", `python3 -c 'import os; w=int(os.environ["WORKER"]); os.setpriority(os.PRIO_PROCESS, w, os.getpriority(os.PRIO_PROCESS, w))' && echo won`, ""},
	{"a setuid program", `cp /bin/true x; chmod 4755 x && echo won; chmod g+s x && echo won; mkdir -p d && chmod 2775 d && echo won
python3 -c 'import os
def try_(name, f, *args):
    try: f(*args); print("won", name)
    except OSError: pass
try_("openat", os.open, "y1", os.O_CREAT|os.O_WRONLY, 0o4755)
try_("tmpfile", os.open, ".", os.O_TMPFILE|os.O_WRONLY, 0o4755)
try_("mknod", os.mknod, "y2", 0o100000|0o4755)
try_("fchmod", lambda: os.fchmod(os.open("x", os.O_RDONLY), 0o6755))
import ctypes, struct
l=ctypes.CDLL(None)
if l.syscall(452, -100, b"x", 0o4755, 0) == 0: print("won fchmodat2")
if l.syscall(437, -100, b"y3", struct.pack("QQQ", os.O_CREAT|os.O_WRONLY, 0o4755, 0), 24) >= 0: print("won openat2")
'; find . -perm /6000 | grep -q . && echo won`, ""},
	{"the helper", `if [ $$ != 1 ]; then for f in /proc/1/fd/* /proc/1/mem; do (exec 3>$f) && echo won; done; cat /proc/1/environ && echo won; fi`, ""},
	{"mount", `mount -t tmpfs none $OUT && echo won; mount --bind / $OUT && echo won`, ""},
	{"a namespace", `unshare -U true && echo won; unshare -Urm true && echo won; unshare -n true && echo won`, ""},
	{"leave the namespace", `nsenter -t 1 -m true && echo won; nsenter -t $WORKER -m true && echo won`, ""},
	{"chroot", `chroot / true && echo won`, ""},
	{"TCP", `(exec 3<>/dev/tcp/$HOST/$PORT) && echo won`, ""},
	{"UDP", `(echo x >/dev/udp/127.0.0.1/53) && echo won`, ""},
	{"metadata", `(exec 3<>/dev/tcp/169.254.169.254/80) && echo won`, ""},
	{"a name", `getent hosts example.com && echo won`, ""},
	{"a raw disk", `mknod disk b 254 0 && echo won; mknod $TMPDIR/disk b 8 0 && echo won; for d in /dev/vda /dev/sda /dev/mem /dev/kmsg; do head -c 1 $d >/dev/null && echo won; done`, ""},
	{"the kernel's switches", `echo 1 >/proc/sys/kernel/sysrq && echo won; echo x >/proc/sysrq-trigger && echo won; echo x >/sys/power/state && echo won`, ""},
	{"hooks of git", `echo x >.git/hooks/pre-commit && echo won`, "files"},
	{"the configuration of git", `echo x >>.git/config && echo won; mv .git/config c && echo won; rm -f .git/config && echo won`, "files"},
	{"another .git", `mv .git other && mkdir -p .git/hooks && echo won`, "files"},
	{"a shell's configuration", `echo x >>.bashrc && echo won; mv .bashrc b && echo won; ln -sf /tmp/x .bashrc && echo won`, "files"},
	{"capabilities", `grep -q '^NoNewPrivs:.*1' /proc/$$/status || grep -qs . /proc/$$/status && ! grep -q '^NoNewPrivs:.*1' /proc/$$/status && echo won`, ""},
	{"tracing", `python3 -c 'import ctypes,os,sys; l=ctypes.CDLL(None,use_errno=True); sys.exit(0 if l.ptrace(16,int(os.environ["WORKER"]),0,0)==0 else 1)' && echo won`, ""},
	{"io_uring", `python3 -c 'import ctypes,sys; l=ctypes.CDLL(None,use_errno=True); sys.exit(0 if l.syscall(425,8,ctypes.create_string_buffer(120))>=0 else 1)' && echo won`, ""},
	{"a keyring", `python3 -c 'import ctypes,sys; l=ctypes.CDLL(None,use_errno=True); sys.exit(0 if l.syscall(250,0,-3,0)>=0 else 1)' && echo won`, ""},
	{"a unix socket", `python3 -c 'import socket,os; s=socket.socket(socket.AF_UNIX); s.connect(os.environ["SOCKET"])' && echo won`, ""},
	{"an abstract socket", `python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.bind("\0x")' && echo won`, ""},
	{"a socket of 32 bits", `python3 -c 'import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)' && echo won; python3 -c 'import socket; socket.socket(40, socket.SOCK_STREAM, 0)' && echo won`, ""},
}

// rounds is how often each attack is tried: some 60 of them, 1,000 times in `make soak`.
var rounds = flag.Int("attack.rounds", 1, "how often each attack is tried")

// neighbour runs another call of the worker beside the attacks, with a secret of its own. The
// function that it returns ends that call, and reports what the attacks did to it.
func (g *ground) neighbour(t *testing.T) (unharmed func()) {
	t.Helper()
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	policy := g.box.Policy
	policy.Write, policy.Temp, policy.Protect = []string{dir}, filepath.Join(dir, "temp"), nil
	m := sandbox.Local()
	if g.bare {
		m.Namespaces, m.WhyNot = sandbox.Namespaces{}, "refused by the test"
	}
	box, err := sandbox.NewOn(policy, m)
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan struct{}, 1), make(chan struct{})
	var result Result
	go func() {
		defer close(ended)
		result, err = Run(t.Context(), Command{
			Args: []string{"bash", "-c", `echo begun; read line; echo "got $line"`}, Dir: dir, StdinFile: r, Sandbox: box,
			Env: []string{"PATH=/usr/bin:/bin", "ANOTHER_TOOLS_SECRET=" + canary},
			OnStdout: func([]byte) {
				select {
				case started <- struct{}{}:
				default:
				}
			},
		})
	}()
	<-started
	return func() {
		fmt.Fprintln(w, "the end")
		w.Close()
		<-ended
		if out := string(result.Stdout.Bytes()); err != nil || out != "begun\ngot the end\n" {
			t.Errorf("another call of the worker: %s, %v, %q", result.Status(), err, out)
		}
	}
}

func TestAttacks(t *testing.T) {
	needs(t, "bash", "python3", "unshare")
	t.Setenv("WORKERS_SECRET", canary)
	for name, bare := range map[string]bool{"with namespaces": false, "without namespaces": true} {
		t.Run(name, func(t *testing.T) {
			if !bare && !sandbox.Local().Namespaces.OwnPID {
				t.Skipf("this machine has no namespaces: %s", sandbox.Local().WhyNot)
			}
			g := newGround(t, bare)
			unharmed := g.neighbour(t)
			for range *rounds {
				for _, a := range attacks {
					r, out := g.run(t, a.script)
					won := strings.Contains(out, "won")
					if won && bare && a.needs != "" && g.names(sandbox.Property(a.needs)) {
						continue // it is named
					}
					if won {
						t.Errorf("%s: %s\n%s", a.name, r.Status(), out)
					}
				}
			}
			unharmed()
			if text, err := os.ReadFile(filepath.Join(g.outside, "file")); err != nil || string(text) != "untouched" {
				t.Errorf("the file outside: %q, %v", text, err)
			}
		})
	}
}

// names reports whether the plan says that a property lacks something.
func (g *ground) names(p sandbox.Property) bool {
	for _, m := range g.box.Plan.Missing {
		if m.Property == p {
			return true
		}
	}
	return false
}

// A command that puts a link in the place of a folder of another one does not widen its sandbox.
func TestAWritableFolderBecomesALink(t *testing.T) {
	needs(t, "bash")
	for name, bare := range map[string]bool{"with namespaces": false, "without namespaces": true} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t, bare)
			state := filepath.Join(g.root, "a", "state")
			if err := os.MkdirAll(state, 0o755); err != nil {
				t.Fatal(err)
			}
			policy := g.box.Policy
			policy.Write = []string{state}
			m := sandbox.Local()
			if bare {
				m.Namespaces = sandbox.Namespaces{}
			}
			other, err := sandbox.NewOn(policy, m)
			if err != nil {
				t.Fatal(err)
			}
			if r, out := g.run(t, `mv a b && mkdir -p a && ln -s $OUT a/state`); r.ExitCode != 0 {
				t.Fatalf("%s: %s", r.Status(), out)
			}
			g.box = other
			if r, out := g.run(t, `echo x >$OUT/file || echo x >../outside/file || chmod 700 $OUT`); r.ExitCode == 0 && other.Plan.Spaces.Mount {
				t.Errorf("%s: %s", r.Status(), out)
			}
			if text, err := os.ReadFile(filepath.Join(g.outside, "file")); err != nil || string(text) != "untouched" {
				t.Errorf("the file outside: %q, %v", text, err)
			}
		})
	}
}

// A command that puts a link in the place of what may be read opens nothing by it, neither for the
// next command nor after the next start of the worker.
func TestAReadablePathBecomesALink(t *testing.T) {
	needs(t, "bash")
	for name, bare := range map[string]bool{"with namespaces": false, "without namespaces": true} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t, bare)
			dir := filepath.Dir(g.root)
			bin, loose, far, by := filepath.Join(g.root, "venv", "bin"), filepath.Join(dir, "loose", "lib"), filepath.Join(dir, "far"), filepath.Join(dir, "by")
			for _, name := range []string{bin, loose, far} {
				if err := os.MkdirAll(name, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(name, "data"), []byte("to read"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for link, to := range map[string]string{by: far, filepath.Join(dir, "into"): filepath.Dir(bin)} {
				if err := os.Symlink(to, link); err != nil {
					t.Fatal(err)
				}
			}
			policy, m := g.box.Policy, sandbox.Local()
			policy.Read = append(policy.Read, bin, loose, by, filepath.Join(dir, "into", "bin"))
			policy.Loose = []string{filepath.Dir(loose)}
			if bare {
				m.Namespaces = sandbox.Namespaces{}
			}
			begin := func() {
				t.Helper()
				box, err := sandbox.NewOn(policy, m)
				if err != nil {
					t.Fatal(err)
				}
				g.box = box
			}
			begin()
			if r, out := g.run(t, `cat venv/bin/data ../loose/lib/data ../far/data ../by/data && mv venv v && mkdir venv && ln -s $OUT venv/bin`); r.ExitCode != 0 {
				t.Fatalf("%s: %s", r.Status(), out)
			}
			if err := errors.Join(os.Rename(loose, loose+"2"), os.Symlink(g.outside, loose)); err != nil {
				t.Fatal(err)
			}
			const attack = `grep -q untouched $OUT/file && echo won; ls $OUT/ && echo won`
			if _, out := g.run(t, attack); strings.Contains(out, "won") {
				t.Errorf("the next command: %s", out)
			}
			begin()
			if _, out := g.run(t, attack); strings.Contains(out, "won") {
				t.Errorf("after a restart: %s", out)
			}
			if r, out := g.run(t, `cat ../by/data`); r.ExitCode != 0 {
				t.Errorf("a link that no command can change: %s, %s", r.Status(), out)
			}
		})
	}
}

// Without Landlock the mounts keep commands from changing the machine, root's too, and from devices.
func TestAttacksWithoutLandlock(t *testing.T) {
	needs(t, "bash")
	if n := sandbox.Local().Namespaces; !n.OwnPID {
		t.Skipf("this machine has no namespaces: %s", sandbox.Local().WhyNot)
	}
	g := newGround(t, false)
	device := filepath.Join(g.outside, "device")
	const zero = 1<<8 | 5
	made := syscall.Mknod(device, syscall.S_IFCHR|0o666, zero) == nil
	for name, n := range map[string]sandbox.Namespaces{"as it is": sandbox.Local().Namespaces, "without a namespace for users": {Mount: true, PID: true, OwnPID: true}, "only mounts": {Mount: true}} {
		t.Run(name, func(t *testing.T) {
			if !n.User && os.Getuid() != 0 {
				t.Skip("another user than root needs a namespace for users")
			}
			m := sandbox.Local()
			m.Landlock, m.Namespaces = 0, n
			box, err := sandbox.NewOn(g.box.Policy, m)
			if err != nil {
				t.Fatal(err)
			}
			g.box = box
			for _, script := range []string{
				`for f in /proc/sys/kernel/core_pattern /proc/sys/vm/swappiness /proc/sys/kernel/pid_max /proc/sysrq-trigger /proc/irq/default_smp_affinity; do (exec 3>>$f) && echo won $f; done`,
				`echo x >$OUT/file && echo won; chmod 777 $OUT/file && echo won; rm -f $OUT/file && echo won`,
				`for d in $OUT/device /dev/kmsg /dev/mem /dev/vda /dev/sda; do [ -e $d ] && head -c 1 $d >/dev/null && echo won $d; done`,
			} {
				if _, out := g.run(t, script); strings.Contains(out, "won") {
					t.Errorf("%s\n%s", script, out)
				}
			}
			if r, out := g.run(t, `set -e; echo x >/dev/null; head -c 1 /dev/zero /dev/urandom >/dev/null; echo x >file; ls /proc/self >/dev/null; [ -z "$(cat $KEY)" ]`); r.ExitCode != 0 {
				t.Errorf("devices: %s\n%s", r.Status(), out)
			}
		})
	}
	if !made {
		t.Log("this user can make no device to try")
	}
}

// Without namespaces a command shares nothing with other processes of its user, and may do to itself
// what it may not do to them.
func TestWithoutNamespacesNothingIsShared(t *testing.T) {
	needs(t, "bash", "python3")
	g := newGround(t, true)
	const call = `python3 -c 'import ctypes,os,sys
l=ctypes.CDLL(None,use_errno=True)
sys.exit(0 if l.%s!=-1 else 1)' && echo won`
	for _, c := range []string{
		"shmget(0,4096,0o600)", "msgget(0,0o600)", "semget(0,1,0o600)", `mq_open(b"/toolfleet-attack",0o102,0o600,None)`,
		"setpriority(2,0,0)", "syscall(ctypes.c_long(251),ctypes.c_long(3),ctypes.c_long(0),ctypes.c_long(0x6000))",
	} {
		if strings.Contains(c, "251") && runtime.GOARCH != "amd64" {
			continue // ioprio_set has another number there
		}
		if _, out := g.run(t, fmt.Sprintf(call, c)); strings.Contains(out, "won") {
			t.Errorf("%s: %s", c, out)
		}
	}
	r, out := g.run(t, `set -e; ulimit -t 100; nice -n 3 true; python3 -c 'import os,resource
resource.prlimit(0, resource.RLIMIT_CPU, (50, 50))
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, 0, 5)'`)
	if r.ExitCode != 0 {
		t.Errorf("of itself: %s\n%s", r.Status(), out)
	}
}

// A command does not say for the helper how it ended.
func TestACommandDoesNotReportItsEnd(t *testing.T) {
	needs(t, "bash")
	g := newGround(t, false)
	if r, out := g.run(t, `for f in /proc/1/fd/*; do printf 'Efake' >$f; printf 'W\0\0\0\0' >$f; done 2>/dev/null; exit 3`); r.ExitCode != 3 {
		t.Errorf("%s: %s", r.Status(), out)
	}
}

// A hidden file in a writable folder stays hidden: nothing above it can be renamed.
func TestAKeyInAWritableFolderStaysHidden(t *testing.T) {
	needs(t, "bash")
	if n := sandbox.Local().Namespaces; !n.Mount {
		t.Skipf("this machine has no namespaces: %s", sandbox.Local().WhyNot)
	}
	g := newGround(t, false)
	key := filepath.Join(g.root, "a", "b", "key")
	if err := errors.Join(os.MkdirAll(filepath.Dir(key), 0o755), os.WriteFile(key, []byte(canary), 0o644)); err != nil {
		t.Fatal(err)
	}
	policy := g.box.Policy
	policy.Hide = append(policy.Hide, key)
	box, err := sandbox.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	g.box = box
	for range 2 {
		if _, out := g.run(t, `mv a/b/key k; mv a/b c; mv a d; echo x >a/free; grep -rq cnry . && echo won; [ -e a/free ] || echo cannot write`); strings.Contains(out, "won") || strings.Contains(out, "cannot write") {
			t.Error(out)
		}
	}
}

// A restricted pod refuses namespaces. So does a sandbox, in which the attacks run once more.
func TestAttacksInAPod(t *testing.T) {
	if testing.Short() || os.Getenv(again) == "pod" {
		t.Skip("it is in one, or takes too long")
	}
	dir := t.TempDir()
	attacks := filepath.Join(dir, "attacks") // this program: another user may not reach it by its own name
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(attacks, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	box, err := sandbox.New(sandbox.Policy{
		Read: sandbox.SystemPaths(os.Getenv("HOME"), os.Getenv("PATH")), Write: []string{dir}, Network: sandbox.HostNetwork,
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Command{
		Args: []string{attacks, "-test.run=^(TestAttacks|TestBombs|TestWorkGoesOn|TestAWritableFolderBecomesALink|TestAReadablePathBecomesALink|TestAttacksWithoutLandlock|TestWithoutNamespacesNothingIsShared|TestAKeyInAWritableFolderStaysHidden|TestACommandDoesNotReportItsEnd)$", "-test.v"}, Dir: dir, Merge: true, Sandbox: box,
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + dir, again + "=pod"},
	})
	out := string(r.Stdout.Bytes())
	if err != nil || r.ExitCode != 0 || !strings.Contains(out, "this machine has no namespaces") {
		t.Errorf("%s, %v\n%s", r.Status(), err, out)
	}
}

// Nobody but root can be shown as root, so the attacks run again as another user.
func TestAttacksOfAnotherUser(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	rerun(t, "attacked", "TestAttacks|TestAttacksInAPod|TestBombs|TestWorkGoesOn|TestAWritableFolderBecomesALink|TestAReadablePathBecomesALink|TestAttacksWithoutLandlock|TestWithoutNamespacesNothingIsShared|TestAKeyInAWritableFolderStaysHidden|TestACommandDoesNotReportItsEnd", func(cmd *exec.Cmd) {
		cmd.Dir = "/"
		cmd.Env = append(cmd.Env, "TMPDIR=/tmp")
		cmd.Path = "/proc/self/exe"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
}

const noFork = "Resource temporarily unavailable"

const forkBomb = `bomb() { bomb | bomb & }; bomb; sleep 60`

// Commands that take everything are ended, and leave nothing behind.
func TestBombs(t *testing.T) {
	needs(t, "bash", "python3")
	for name, bare := range map[string]bool{"with namespaces": false, "without namespaces": true} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t, bare)
			for script, want := range map[string]string{
				`python3 -c 'b=[]
while True: b.append(bytearray(1<<20))'`: "memory",
				`python3 -c 'import mmap
m=mmap.mmap(-1,1<<30)
for i in range(0,1<<30,4096): m[i]=1
import time; time.sleep(60)'`: "memory",
				`for i in $(seq 400); do sleep 60 & done; wait`: "processes",
				forkBomb: "processes",
			} {
				// Without a namespace it takes a while to kill them all. Other tests on this
				// machine would be held up, and those of root would have no process left. For
				// another user than root the kernel refuses to fork, and bash tries again for 15 s.
				if script == forkBomb && (g.bare || os.Getuid() != 0) {
					continue
				}
				r, out := g.runUntil(t, script, noFork)
				// The kernel may refuse to fork before the command has too many processes.
				if !strings.Contains(r.Over, want) && !strings.Contains(out, noFork) {
					t.Errorf("%.40s: %s, %.200s", script, r.Status(), out)
				}
			}
			if r, out := g.run(t, `for i in $(seq 200); do head -c 1000000 /dev/zero >$TMPDIR/$i; sleep 0.02; done; sleep 60`); !strings.Contains(r.Over, "temporary files") {
				t.Errorf("a full disk: %s, %.200s", r.Status(), out)
			}
			g = newGround(t, bare) // the temporary files of this one are over their bound
			r, out := g.run(t, `head -c 100000000 /dev/zero >big`)
			if info, err := os.Stat(filepath.Join(g.root, "big")); r.ExitCode == 0 || err != nil || info.Size() > 8<<20 {
				t.Errorf("a big file: %s, %s", r.Status(), out)
			}
		})
	}
}

// Ordinary work is not hindered.
func TestWorkGoesOn(t *testing.T) {
	needs(t, "bash", "git", "python3")
	for name, bare := range map[string]bool{"with namespaces": false, "without namespaces": true} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t, bare)
			for _, script := range []string{
				`mkdir -p w && cd w && git init -q . && git config user.email a@b && git config user.name a && echo 1 >a && git add a && git commit -qm x && git log --oneline | grep -q x`,
				`cat <(echo a) <(echo b) | grep -q b`,
				`echo $$ >/dev/null; ls /dev/fd/ >/dev/null; echo a | tee /dev/stderr 2>/dev/null`,
				`mktemp -d && t=$(mktemp) && echo x >$t && cat $t`,
				`python3 -c 'import subprocess; print(subprocess.run(["id","-u"],capture_output=True).stdout)'`,
				`(sleep 0.01 & wait); trap 'exit 0' TERM; kill -TERM $$; sleep 1; exit 1`,
				`mkdir -m 1777 s && chmod 755 s && rmdir s && python3 -c 'import os; os.open(".", os.O_RDONLY, 0o7777)'`,
				`mkdir d && mv d e && rmdir e && echo '#!/bin/sh' >s && chmod +x s && ./s`,
				`xargs -P 4 -n 1 echo <<<"1 2 3 4" | sort | tail -1 | grep -q 4`,
			} {
				if r, out := g.run(t, script); r.ExitCode != 0 {
					t.Errorf("%s: %s\n%s", script, r.Status(), out)
				}
			}
		})
	}
}

// A command in a sandbox is stopped with everything that it started.
func TestASandboxEndsWithItsContext(t *testing.T) {
	needs(t, "bash", "setsid")
	g := newGround(t, false)
	ctx, cancel := contextWithCause(t, 100*time.Millisecond)
	defer cancel()
	_, err := Run(ctx, Command{Args: []string{"bash", "-c", "setsid sleep 1000 & sleep 1000"}, Env: []string{"PATH=" + os.Getenv("PATH")}, Sandbox: g.box})
	if !errors.Is(err, errStop) {
		t.Errorf("got %v", err)
	}
}
