package egress

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/worker/tool/process"
)

// machines returns this machine, and this machine as if it had no network namespaces.
func machines(t *testing.T) map[string]sandbox.Machine {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3")
	}
	all := map[string]sandbox.Machine{}
	whole := sandbox.Local()
	if whole.Namespaces.Net && whole.Seccomp {
		all["network namespace"] = whole
	}
	bare := whole
	bare.Namespaces, bare.WhyNot = sandbox.Namespaces{}, "refused by the test"
	if bare.Landlock >= 6 && bare.Seccomp {
		all["no namespaces"] = bare
	}
	if len(all) == 0 {
		t.Skipf("this machine has Landlock with ABI %d, seccomp: %t, and no network namespace: %s", whole.Landlock, whole.Seccomp, whole.WhyNot)
	}
	return all
}

// boxOn returns a sandbox that reaches the network through a proxy.
func boxOn(t *testing.T, m sandbox.Machine, reach sandbox.Reach, cfg Config) *sandbox.Box {
	t.Helper()
	dir := t.TempDir()
	box, err := sandbox.NewOn(sandbox.Policy{
		Read: sandbox.SystemPaths(os.Getenv("HOME"), os.Getenv("PATH")), Write: []string{dir}, Temp: filepath.Join(dir, "temp"),
		Network: reach, Hosts: cfg.Hosts,
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Any = reach == sandbox.AnyHost
	box.Proxy = New(cfg)
	return box
}

// python runs a script in a sandbox. Its arguments are in the variable $ARGS.
func python(t *testing.T, box *sandbox.Box, script string, env ...string) (process.Result, string) {
	t.Helper()
	r, err := process.Run(t.Context(), process.Command{
		Args: []string{"python3", "-c", script}, Dir: box.Policy.Write[0], Merge: true, Sandbox: box,
		Env: append(env, "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME")),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, string(r.Stdout.Bytes())
}

const fetch = `import os, urllib.request
print(urllib.request.urlopen(os.environ["TARGET"]).read().decode())`

func TestCommandsReachTheHostsOfTheirList(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello from "+r.Host) }))
	defer host.Close()
	// Commands of a sandbox use no proxy for localhost, 127.0.0.1 and ::1 (see NO_PROXY in
	// package sandbox). The host is therefore at 127.0.0.2.
	at := strings.TrimPrefix(host.URL, "http://")
	_, number, _ := net.SplitHostPort(at)
	listed := "127.0.0.2:" + number
	second, err := net.Listen("tcp", listed)
	if err != nil {
		t.Skipf("this machine has no second address of its own: %v", err)
	}
	go http.Serve(second, host.Config.Handler)
	defer second.Close()
	for name, m := range machines(t) {
		t.Run(name, func(t *testing.T) {
			box := boxOn(t, m, sandbox.SomeHosts, Config{Hosts: []string{listed}, Loopback: true})
			for range 3 {
				if r, out := python(t, box, fetch, "TARGET=http://"+listed); r.ExitCode != 0 || !strings.Contains(out, "hello from "+listed) {
					t.Fatalf("%s: %s", r.Status(), out)
				}
			}
			r, out := python(t, box, fetch, "TARGET=http://other.example/")
			note := box.Note(out, r.Refused...)
			if r.ExitCode == 0 || !strings.Contains(out, "403") || !strings.Contains(note, "other.example:80 is not in the list of hosts") || !strings.Contains(note, listed) {
				t.Errorf("%s: %s\n%s", r.Status(), out, note)
			}
			none := boxOn(t, m, sandbox.SomeHosts, Config{})
			none.Proxy = nil
			if r, out := python(t, none, fetch, "TARGET=http://"+listed); r.ExitCode == 0 {
				t.Errorf("without a proxy: %s", out)
			}
		})
	}
}

// ways are attempts to connect without the proxy. A script prints "won" if it gets a
// connection.
var ways = []struct{ name, script string }{
	{"TCP", `socket.create_connection(tcp, 5)`},
	{"UDP", `s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(tcp); s.send(b"x"); answered(s)`},
	{"the metadata service", `socket.create_connection(("169.254.169.254", 80), 5)`},
	{"a fast open", `s=socket.socket(); s.settimeout(5); s.sendto(b"x", socket.MSG_FASTOPEN, tcp)`},
	{"a fast open, without a filter", `s=socket.socket(); s.settimeout(5); s.setsockopt(socket.IPPROTO_TCP, 30, 1); s.connect(tcp); s.send(b"x")`},
	{"a message that opens", `s=socket.socket(); s.settimeout(5); s.sendmsg([b"x"], [], socket.MSG_FASTOPEN, tcp)`},
	{"MPTCP", `s=socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.settimeout(5); s.connect(tcp)`},
	{"SCTP", `s=socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132); s.settimeout(5); s.connect(tcp)`},
	{"IPv6", `s=socket.socket(socket.AF_INET6); s.settimeout(5); s.connect(("::ffff:"+tcp[0], tcp[1]))`},
	{"a unix socket", `s=socket.socket(socket.AF_UNIX); s.connect(os.environ["UNIX"])`},
	{"an abstract socket", `s=socket.socket(socket.AF_UNIX); s.connect(os.environ["ABSTRACT"].replace("@", "\0"))`},
	{"a raw packet", `socket.socket(socket.AF_PACKET, socket.SOCK_RAW)`},
	{"a raw socket", `socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)`},
	{"netlink", `socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)`},
	{"a virtual machine's socket", `socket.socket(40, socket.SOCK_STREAM, 0)`},
	{"a crypto socket", `socket.socket(38, socket.SOCK_SEQPACKET, 0)`},
}

func TestNothingGetsPastTheProxy(t *testing.T) {
	short, err := os.MkdirTemp("", "tf") // the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	for name, m := range machines(t) {
		t.Run(name, func(t *testing.T) {
			listen := func(network, address string) string {
				l, err := net.Listen(network, address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { l.Close() })
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						t.Errorf("a command connected to %s %s", network, address)
						c.Close()
					}
				}()
				return l.Addr().String()
			}
			tcp, unix, abstract := listen("tcp", "127.0.0.1:0"), listen("unix", filepath.Join(short, name[:2])), listen("unix", "@"+short+name)
			for _, reach := range []sandbox.Reach{sandbox.SomeHosts, sandbox.AnyHost} {
				box := boxOn(t, m, reach, Config{Fleet: []string{tcp}})
				host, number, _ := net.SplitHostPort(tcp)
				var script strings.Builder
				fmt.Fprintf(&script, "import os, socket\ntcp=(%q, %s)\ndef answered(s):\n    s.settimeout(0.2)\n    s.recv(1)\n", host, number)
				for _, w := range ways {
					fmt.Fprintf(&script, "try:\n    %s\n    print(\"won: %s\")\nexcept OSError: pass\n", w.script, w.name)
				}
				script.WriteString("print('all tried')\n")
				r, out := python(t, box, script.String(), "UNIX="+unix, "ABSTRACT="+abstract)
				if strings.Contains(out, "won") || !strings.Contains(out, "all tried") {
					t.Errorf("%s: %s\n%s", reach, r.Status(), out)
				}
				// The proxy refuses these targets too.
				const ask = `import os, socket, urllib.parse, base64
p=urllib.parse.urlparse(os.environ["HTTPS_PROXY"])
for target in os.environ["TARGETS"].split():
    s=socket.create_connection((p.hostname, p.port), 5)
    auth="" if not p.username else "Proxy-Authorization: Basic "+base64.b64encode((p.username+":x").encode()).decode()+"\r\n"
    s.sendall(("CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (target, target, auth)).encode())
    print(target, s.recv(4096).split()[1].decode())`
				r, out = python(t, box, ask, "TARGETS="+tcp+" 169.254.169.254:80 localhost:"+number)
				if r.ExitCode != 0 || strings.Count(out, " 403") != 3 {
					t.Errorf("%s: %s\n%s", reach, r.Status(), out)
				}
			}
		})
	}
}

// A command ends and leaves a program in the background: the connections of that program are
// closed.
func TestConnectionsEndWithTheirCommand(t *testing.T) {
	cut := make(chan struct{})
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(cut)
	}))
	defer host.Close()
	at := strings.TrimPrefix(host.URL, "http://")
	for name, m := range machines(t) {
		t.Run(name, func(t *testing.T) {
			cut = make(chan struct{})
			box := boxOn(t, m, sandbox.SomeHosts, Config{Hosts: []string{at}, Loopback: true})
			const leave = `import os, socket, urllib.parse, base64
p=urllib.parse.urlparse(os.environ["HTTPS_PROXY"])
s=socket.create_connection((p.hostname, p.port), 5)
auth="" if not p.username else "Proxy-Authorization: Basic "+base64.b64encode((p.username+":x").encode()).decode()+"\r\n"
t=os.environ["TARGET"]
s.sendall(("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (t, t, auth)).encode())
s.recv(1)
os.set_inheritable(s.fileno(), True)
os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")`
			if r, out := python(t, box, leave, "TARGET="+at); r.ExitCode != 0 {
				t.Fatalf("%s: %s", r.Status(), out)
			}
			<-cut
		})
	}
}
