package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

// page follows docs/identities.md. Its commands run in one shell, so that variables persist.
type page struct{ *reader }

// The commands of docs/identities.md work as the page says. Besides the words of README.md
// (see [snippet]), the page uses:
//
//	sees, TEXT    the command's output has the text within a short time
//	reload, FILE  the server gets SIGHUP and then accepts the key in that file
func TestIdentitiesPage(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash: the commands are not run")
	}
	document, err := os.ReadFile("../../../docs/identities.md")
	if err != nil {
		t.Fatal(err)
	}
	_, walk, _ := strings.Cut(string(document), "\n## Running it\n") // skip the picture
	all, err := snippets(walk)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d commands, %v", len(all), err)
	}
	dependOn(t, "../../../cmd", "../../../internal", "../../../deploy/nats")
	command := binary(t)
	p := page{&reader{t: t, dir: t.TempDir(), server: natstest.FreeAddr(t)}}
	if err := errors.Join(
		os.CopyFS(filepath.Join(p.dir, "examples"), os.DirFS("../../../examples")),
		os.Symlink(command, filepath.Join(p.dir, "toolfleet")),
	); err != nil {
		t.Fatal(err)
	}
	// Somebody may have run the example by hand, which leaves this file.
	_ = os.Remove(filepath.Join(p.dir, "examples", "refund", "ledger"))
	p.env = []string{"PATH=" + p.dir + ":" + os.Getenv("PATH"), "HOME=" + p.dir}
	t.Cleanup(p.stop)
	for _, s := range all {
		if err := p.follow(s); err != nil {
			t.Fatalf("docs/identities.md: %s: %v\n%s", s.verb, err, s.text)
		}
	}
	if err := p.begun.cmd.Wait(); err != nil || !strings.Contains(fmt.Sprint(p.begun.cmd.Stdout), `"output":"refunded`) {
		t.Errorf("the agent's run: %v\n%s%s", err, p.begun.cmd.Stdout, p.begun.log)
	}
	for _, name := range []string{"acme", "ann", "coordinator", "globex", "http", "operator", "worker"} {
		info, err := os.Stat(filepath.Join(p.dir, "identities", name, "key.nkey"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key of %s: %v, %v", name, info, err)
		}
	}
	p.stop()
}

func (p page) follow(s snippet) error {
	text := strings.ReplaceAll(s.text, "127.0.0.1:4222", p.server)
	switch s.verb {
	case "run":
		return p.shell(text)
	case "start":
		for line := range strings.Lines(text) {
			if err := p.start(strings.TrimSpace(line)); err != nil {
				return err
			}
		}
		return nil
	case "begin":
		return p.begin(text)
	case "sees":
		return p.until(func() error {
			err := p.shell(text)
			if err == nil && !strings.Contains(p.stdout, s.arg) {
				err = fmt.Errorf("it shows\n%s%s", p.stdout, p.stderr)
			}
			return err
		})
	case "terminal":
		return p.terminal(text, s.arg)
	case "reload":
		return p.reload(filepath.Join(p.dir, s.arg))
	}
	return errors.New("no such word")
}

// shell runs commands and keeps the variables that they export.
func (p page) shell(commands string) error {
	const kept = ".exported"
	cmd := exec.CommandContext(p.t.Context(), "bash", "-euc", commands+"\nenv -0 > "+kept)
	cmd.Dir, cmd.Env = p.dir, p.environment()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	p.stdout, p.stderr = stdout.String(), stderr.String()
	if err != nil {
		return fmt.Errorf("%w\n%s%s", err, p.stdout, p.stderr)
	}
	exported, err := os.ReadFile(filepath.Join(p.dir, kept))
	for variable := range strings.SplitSeq(string(exported), "\x00") {
		if strings.HasPrefix(variable, "TOOLFLEET_") && !slices.Contains(p.env, variable) {
			p.env = append(p.env, variable)
		}
	}
	return err
}

func (p page) reload(key string) error {
	nats := p.daemons[0]
	o := bus.Options{URL: p.server, NKey: key, InboxPrefix: "_INBOX.agent", TLSCA: filepath.Join(filepath.Dir(key), "ca.crt")}
	if conn, err := bus.Connect(p.t.Context(), o); err == nil {
		conn.Close()
		return errors.New("it is let in before the reload")
	}
	if err := nats.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	return p.until(func() error {
		conn, err := bus.Connect(p.t.Context(), o)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// Each daemon with --http becomes ready, and the server refuses nothing to its identity.
func TestDaemonsWithIdentitiesGetReady(t *testing.T) {
	ids := natstest.NewIdentities(t)
	p := &processes{t: t, url: natstest.Server(t, natstest.Listening, ids.Option).URL()}
	file, _ := p.tools()
	for _, args := range [][]string{{"coordinator"}, {"worker", "--tools", file}} {
		who := args[0]
		d := p.ready(append(args, "--nkey", ids.Seed(who), "--inbox-prefix", ids.Inbox(who))...)
		if said := d.log.String(); strings.Contains(strings.ToLower(said), "permissions violation") {
			t.Errorf("the %s is refused something:\n%s", who, said)
		}
	}
}
