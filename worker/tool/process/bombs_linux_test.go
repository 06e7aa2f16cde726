package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const noFork = "Resource temporarily unavailable"

const forkBomb = `bomb() { bomb | bomb & }; bomb; sleep 60`

// Commands use up memory, processes or disk: each is ended and leaves nothing behind.
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
				// Without a namespace it takes a while to kill all processes of a fork bomb.
				// Meanwhile other tests on this machine are held up, and tests of root get no
				// process. For another user than root the kernel refuses to fork, and bash
				// tries again for 15 s.
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
			g = newGround(t, bare) // a new sandbox: the temporary files of the old one are over their bound
			r, out := g.run(t, `head -c 100000000 /dev/zero >big`)
			if info, err := os.Stat(filepath.Join(g.root, "big")); r.ExitCode == 0 || err != nil || info.Size() > 8<<20 {
				t.Errorf("a big file: %s, %s", r.Status(), out)
			}
		})
	}
}

// A sandbox lets ordinary work succeed.
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

// The context of a command in a sandbox ends: the command is stopped with everything that it
// started.
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
