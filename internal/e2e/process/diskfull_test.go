package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// mount mounts a file system on a new folder until the test ends, and returns the folder. It
// skips the test if mounting is not allowed.
func mount(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system of its own needs root")
	}
	if out, err := exec.Command("mount", append(args, dir)...).CombinedOutput(); err != nil {
		t.Skipf("a file system of its own may not be mounted here: %v: %s", err, strings.TrimSpace(string(out)))
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("unmount %s: %v: %s", dir, err, out)
		}
	})
	return dir
}

// fillDisk fills the disk of a folder. remove frees it again.
func fillDisk(t *testing.T, dir string) (remove func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, 64<<10); len(chunk) > 0; {
		if _, err := f.Write(chunk); err != nil {
			chunk = chunk[:len(chunk)/2]
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// The disk of the server fills up while batches run. No batch is acknowledged that is not
// stored, and doctor says what to do. After a restart with free space, every acknowledged
// batch gets its reply.
func TestTheDiskIsFull(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs processes")
	}
	disk := mount(t, "-t", "tmpfs", "-o", "size=16m", "tmpfs")
	data := filepath.Join(disk, "data")
	ledger := filepath.Join(t.TempDir(), "ledger")
	p, server := serverOn(t, data, nil, append(quickly, "NAP=1", "LEDGER="+ledger)...)
	p.ready("coordinator")
	p.ready("worker", "--tools", ledgerTools(t, ledger))
	c := p.client()
	done := canonical("s", "done", call{"echo", `{"n":1}`})
	before, err := c.Run(t.Context(), done)
	if err != nil {
		t.Fatal(err)
	}
	var accepted []messages.Batch
	for n := range 5 {
		b := twoWrites(fmt.Sprint("s", n), "b")
		if err := c.Submit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		accepted = append(accepted, b)
	}
	p.until("a write runs", func() bool { body, _ := os.ReadFile(ledger); return len(body) > 0 })
	giveBack := fillDisk(t, disk)

	refused := 0
	for n := 0; n < 20 && refused < 2; n++ {
		b := canonical(fmt.Sprint("late", n), "b", call{"echo", `{"v":"` + strings.Repeat("x", 4096) + `"}`})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if err := c.Submit(ctx, b); err == nil {
			accepted = append(accepted, b)
		} else {
			refused++
		}
		cancel()
	}
	if refused == 0 {
		t.Fatal("a full disk took every batch")
	}
	// A server that was only slow to answer has not met the full disk yet.
	p.until("a stream accepts no messages", func() bool { out, _, _ := p.exec("doctor"); return strings.Contains(out, "restart the NATS server") })
	giveBack()
	out, _, code := p.exec("doctor")
	says(t, "the doctor", out, "fail", "writable", "TOOLFLEET_BATCHES", "restart the NATS server")
	if code != 1 {
		t.Errorf("the doctor ends with %d", code)
	}

	if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = server.cmd.Wait()
	p.start("nats", "--listen", strings.TrimPrefix(p.url, "nats://"), "--data", data)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var replies []messages.Reply
	for _, b := range accepted {
		reply, err := c.Await(ctx, b.Session, b.ID)
		if err != nil {
			t.Errorf("batch of session %s, which was acknowledged: %v", b.Session, err)
			continue
		}
		replies = append(replies, reply)
	}
	checkEffects(t, ledger, replies)
	if again, err := c.Get(ctx, done.Session, done.ID); err != nil || string(again.Reinjection) != string(before.Reinjection) {
		t.Errorf("the reply from before: %s, %v", again.Reinjection, err)
	}
	if out, _, _ := p.exec("doctor"); strings.Contains(out, "restart the NATS server") {
		t.Errorf("after the restart the doctor says\n%s", out)
	}
}
