package process

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// attacks are scripts that must not succeed: a script prints "won" if it does. needs names the
// property of the sandbox that stops the attack only with namespaces; without namespaces the
// plan has to list this property as missing.
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

// rounds is how often each attack is tried. `make soak` tries each 1,000 times.
var rounds = flag.Int("attack.rounds", 1, "how often each attack is tried")

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
						continue // the plan says that this is missing
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

// Without Landlock, the mounts alone keep commands, also those of root, from changing the
// machine and from using devices.
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

// Without namespaces a command can use no shared memory, queues or priorities of other
// processes of its user. It may still change its own limits and priority.
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
			continue // on other architectures ioprio_set has another number
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

// A command writes to the helper's files as if it were the helper that reports an end: the
// worker still sees the real exit status.
func TestACommandDoesNotReportItsEnd(t *testing.T) {
	needs(t, "bash")
	g := newGround(t, false)
	if r, out := g.run(t, `for f in /proc/1/fd/*; do printf 'Efake' >$f; printf 'W\0\0\0\0' >$f; done 2>/dev/null; exit 3`); r.ExitCode != 3 {
		t.Errorf("%s: %s", r.Status(), out)
	}
}

// A restricted pod refuses namespaces. A sandbox refuses them too, so the attacks run once
// more inside a sandbox.
func TestAttacksInAPod(t *testing.T) {
	if testing.Short() || os.Getenv(again) == "pod" {
		t.Skip("it is in one, or takes too long")
	}
	dir := t.TempDir()
	attacks := filepath.Join(dir, "attacks") // a copy of this program, since another user may not reach the original
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

// The tests run as root, and attacks by root prove nothing about other users. So they run
// again as another user.
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
