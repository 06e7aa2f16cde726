package process

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

var (
	powerImages = flag.Int("powerloss.images", 2, "how often the power fails in TestPowerLoss")
	powerSeed   = flag.Uint64("powerloss.seed", 0, "when it does; 0: at another moment each time")
)

// ledgerTools writes a tools file with echo (a read) and note (a write). note appends its
// session, batch and index to the ledger.
func ledgerTools(t *testing.T, ledger string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tools.yaml")
	body := `tools:
  - {name: echo, kind: read, builtin: noop}
  - name: note
    kind: write
    input_schema: {type: object}
    env: [LEDGER, NAP]
    exec: {command: [sh, -c, 'echo "$TOOLFLEET_SESSION $TOOLFLEET_BATCH $TOOLFLEET_INDEX" >>"$LEDGER"; sleep "${NAP:-0}"; echo noted']}
    sandbox: {state: [` + filepath.Dir(ledger) + `]}
`
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// twoWrites returns a batch with two writes, at the indexes 1 and 3, that append to the
// ledger.
func twoWrites(session, id string) messages.Batch {
	return canonical(session, id, call{"echo", `{"n":1}`}, call{"note", ""}, call{"echo", `{"n":2}`}, call{"note", ""})
}

// checkEffects compares results with the ledger. A write has at most one line, and exactly one
// if its result says that it was done.
func checkEffects(t *testing.T, ledger string, replies []messages.Reply) {
	t.Helper()
	body, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]int{}
	for line := range strings.Lines(string(body)) {
		lines[strings.TrimSpace(line)]++
	}
	for line, n := range lines {
		if n > 1 {
			t.Errorf("the effect of %q was had %d times", line, n)
		}
	}
	for _, reply := range replies {
		for _, r := range reply.Results {
			n := lines[fmt.Sprint(reply.Session, " ", reply.Batch, " ", r.Index)]
			if r.Tool == "note" && r.Status == messages.StatusOK && n != 1 {
				t.Errorf("call %d of batch %s of session %s is said to be done, and is in the ledger %d times", r.Index, reply.Batch, reply.Session, n)
			}
			if r.Status != messages.StatusOK && r.Status != messages.StatusOutcomeUnknown && r.Status != messages.StatusSkipped {
				t.Errorf("batch %s of session %s: %s", reply.Batch, reply.Session, rawjson.MustMarshal(r))
			}
		}
	}
}

// diskImage creates a disk image in a file and mounts it.
func diskImage(t *testing.T) (image, dir string) {
	t.Helper()
	image = filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		t.Skipf("no file system can be made in a file here: %v: %s", err, strings.TrimSpace(string(out)))
	}
	return image, mount(t, "-o", "loop", image)
}

// load submits batches in a few sessions, one after another in each session. It records the
// acknowledged batches and the published replies.
type load struct {
	mu       sync.Mutex
	accepted []messages.Batch  // guarded by mu
	seen     map[string][]byte // replies by the end of their subject; guarded by mu
}

func (l *load) run(ctx context.Context, t *testing.T, conn *bus.Conn, sessions int) {
	c := fleettest.AgentOver(conn, "")
	unsubscribe, err := conn.Subscribe("toolfleet.reply.>", "", func(m bus.Msg) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.seen[strings.TrimPrefix(m.Subject, "toolfleet.reply.")] = m.Data
	})
	if err != nil {
		t.Error(err)
		return
	}
	defer unsubscribe()
	var agents sync.WaitGroup
	for s := range sessions {
		agents.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				b := twoWrites(fmt.Sprint("s", s), fmt.Sprint("b", n))
				if err := c.Submit(ctx, b); err != nil {
					continue // not acknowledged, so it may be lost
				}
				l.mu.Lock()
				l.accepted = append(l.accepted, b)
				l.mu.Unlock()
				_, _ = c.Await(ctx, b.Session, b.ID)
			}
		})
	}
	agents.Wait()
}

func (l *load) replies() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// outage holds copies of the disk and the ledger from the moment of a power failure, and what
// load had recorded.
type outage struct {
	image, ledger string
	accepted      []messages.Batch
	seen          map[string][]byte
}

// powerFailure copies the disk without the data that the operating system has not written yet.
// It stops the server first, because a copy takes time and a power failure does not.
// Coordinators and workers go on.
func (l *load) powerFailure(t *testing.T, server *daemon, image, ledger string) outage {
	t.Helper()
	dir := t.TempDir()
	o := outage{image: filepath.Join(dir, "disk.img"), ledger: filepath.Join(dir, "ledger"), seen: map[string][]byte{}}
	if err := server.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	o.accepted = append(o.accepted, l.accepted...)
	for subject, reply := range l.seen {
		o.seen[subject] = reply
	}
	l.mu.Unlock()
	copyFile(t, ledger, o.ledger)
	// The operating system still writes data to the disk, and a copy made during such a write
	// is a state that the disk never had. So fail copies until the copy equals the disk.
	for range 100 {
		copyFile(t, image, o.image)
		if sameContent(t, image, o.image) {
			return o
		}
	}
	t.Fatal("the image of the disk does not stand still")
	return o
}

// sameContent reports whether two files hold the same bytes.
func sameContent(t *testing.T, a, b string) bool {
	t.Helper()
	return sum(t, a) == sum(t, b)
}

func sum(t *testing.T, file string) [sha256.Size]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = io.Copy(out, in); err == nil {
		err = out.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

var quickly = []string{"TOOLFLEET_ACK_WAIT=1s", "TOOLFLEET_LEASE=2s", "TOOLFLEET_GRACE=500ms", "TOOLFLEET_UNSAFE_SYNC=true"}

// outages runs a fleet on a separate disk, and returns the states of count power failures
// while batches run.
func outages(t *testing.T, count int, sync string) []outage {
	t.Helper()
	seed := *powerSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-powerloss.seed %d", seed)
	moments := rand.New(rand.NewPCG(seed, 0))
	image, disk := diskImage(t)
	ledger := filepath.Join(t.TempDir(), "ledger")
	p, server := serverOn(t, filepath.Join(disk, "data"), []string{"--sync", sync}, append(quickly, "LEDGER="+ledger)...)
	coordinator, worker := p.ready("coordinator"), p.ready("worker", "--tools", ledgerTools(t, ledger))
	l := &load{seen: map[string][]byte{}}
	ctx, stop := context.WithCancel(t.Context())
	conn := p.bus()
	ended := make(chan struct{})
	go func() { defer close(ended); l.run(ctx, t, conn, 4) }()
	var all []outage
	for i := range count {
		if i%2 == 1 { // at every other failure, part of the data is written
			if out, err := exec.Command("sync", "-f", disk).CombinedOutput(); err != nil {
				t.Fatalf("sync %s: %v: %s", disk, err, out)
			}
		}
		until := l.replies() + 10 + moments.IntN(60)
		p.until("some batches have ended", func() bool { return l.replies() >= until })
		all = append(all, l.powerFailure(t, server, image, ledger))
		if err := server.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	<-ended
	for _, d := range []*daemon{coordinator, worker, server} {
		d.kill()
	}
	return all
}

// recovered starts a fleet on the disk of a power failure. It returns the replies of all
// acknowledged batches, the number of lost batches, and the number of replies that differ from
// the reply before the failure.
func (o outage) recovered(t *testing.T) (replies []messages.Reply, lost, changed int) {
	t.Helper()
	p, _ := serverOn(t, filepath.Join(mount(t, "-o", "loop", o.image), "data"), nil, append(quickly, "LEDGER="+o.ledger)...)
	p.ready("coordinator")
	p.ready("worker", "--tools", ledgerTools(t, o.ledger))
	c, conn := p.client(), p.bus()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, b := range o.accepted {
		reply, err := c.Await(ctx, b.Session, b.ID)
		if errors.Is(err, client.ErrUnknown) {
			lost++
			continue
		}
		if err != nil {
			t.Errorf("batch %s of session %s: %v", b.ID, b.Session, err)
			return replies, lost, changed
		}
		replies = append(replies, reply)
	}
	for subject, seen := range o.seen {
		stored, err := conn.Last(ctx, conn.Names().Stream(bus.Replies), "toolfleet.final."+subject)
		if err != nil || string(stored.Data) != string(seen) {
			changed++
		}
	}
	return replies, lost, changed
}

// The power fails many times while batches run. Every acknowledged batch gets its reply, a
// published reply does not change, and no write happens twice. The ledger of the writes is on
// another disk.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs processes on disks of their own")
	}
	for i, o := range outages(t, *powerImages, "always") {
		replies, lost, changed := o.recovered(t)
		t.Logf("failure %d: %d batches acknowledged, %d replies seen before; %d lost, %d replies changed", i, len(o.accepted), len(o.seen), lost, changed)
		if lost > 0 || changed > 0 {
			t.Errorf("failure %d: %d of %d acknowledged batches are lost, %d of %d replies changed", i, lost, len(o.accepted), changed, len(o.seen))
		}
		checkEffects(t, o.ledger, replies)
	}
}

// The server syncs every two minutes, as a NATS server does by default, and the power fails.
// The server loses acknowledged batches, which shows that TestPowerLoss can fail. The test
// logs how many are lost, and requires no number.
func TestPowerLossWithoutSync(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs processes on disks of their own")
	}
	for _, o := range outages(t, 1, "2m") {
		_, lost, changed := o.recovered(t)
		t.Logf("syncing every 2 minutes: %d of %d acknowledged batches are lost, %d of %d replies", lost, len(o.accepted), changed, len(o.seen))
	}
}

// The power fails for the server only. Coordinator and worker live, reconnect to a server with
// the data of its disk, and go on.
func TestPowerLossUnderLivingDaemons(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs processes on disks of their own")
	}
	image, disk := diskImage(t)
	ledger := filepath.Join(t.TempDir(), "ledger")
	p, server := serverOn(t, filepath.Join(disk, "data"), nil, append(quickly, "LEDGER="+ledger)...)
	p.ready("coordinator")
	p.ready("worker", "--tools", ledgerTools(t, ledger))
	l := &load{seen: map[string][]byte{}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.run(ctx, t, p.bus(), 4) }()
	p.until("some batches have ended", func() bool { return l.replies() >= 20 })
	o := l.powerFailure(t, server, image, ledger)
	server.kill() // the copied disk would lack later acknowledged data
	stop()
	<-ended
	data := filepath.Join(mount(t, "-o", "loop", o.image), "data")
	p.start("nats", "--listen", strings.TrimPrefix(p.url, "nats://"), "--data", data)
	c := p.client()
	waiting, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var replies []messages.Reply
	for _, b := range append(o.accepted, twoWrites("new", "b")) {
		reply, err := c.Run(waiting, b)
		if err != nil {
			t.Fatalf("batch %s of session %s: %v", b.ID, b.Session, err)
		}
		replies = append(replies, reply)
	}
	checkEffects(t, ledger, replies)
}
