package attempt_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/attempt"
	"github.com/toolfleet/toolfleet/worker/call"
)

var update = flag.Bool("update", false, "rewrite testdata; read the diff before you commit it")

// TestScenarios runs each file of testdata as a scenario. The line "call:" describes the call:
// the kind of the tool (read, write), then fields of the job as key=value words. A line ">
// event" gives the machine one event. The lines below it are the effects, the state, and when
// the machine wants to wake. "+3s" before an event lets time pass. An answer of the journal
// belongs to the open request, or with the word "renewal" to the newest renewal.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := (&scenario{TB: t, now: epoch}).run(string(want))
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got; -update rewrites it):\n%s", file, diff)
			}
		})
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// serverTime is the server's clock. It is far from the worker's clock, so a mix-up of the two
// clocks shows.
var serverTime = epoch.Add(-48 * time.Hour)

func config() attempt.Config {
	return attempt.Config{
		Worker: "w", AckWait: 9 * time.Second, Lease: 10 * time.Second, Grace: 2 * time.Second, ApprovalTTL: 15 * time.Minute,
		LastWords: 5 * time.Second, Poison: 5, MaxPayload: 1 << 20, MaxInline: 256 << 10,
	}
}

// scenario runs one file: an attempt with its clock.
type scenario struct {
	testing.TB
	now     time.Time
	m       *attempt.Machine
	cause   error  // of the newest cancel
	refused error  // the newest refusal
	main    string // the nonce of the open request, other than a renewal
	renewal string // the nonce of the newest renewal
	result  messages.Result
	out     bytes.Buffer
}

func (s *scenario) run(text string) []byte {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "call:"):
			s.begin(strings.Fields(line[len("call:"):]))
		case strings.HasPrefix(line, ">"):
			fmt.Fprintln(&s.out, line)
			s.step(strings.Fields(line[1:]))
			continue
		case line != "" && !strings.HasPrefix(line, "#"):
			continue // an effect, which -update writes anew
		}
		fmt.Fprintln(&s.out, line)
	}
	return s.out.Bytes()
}

// words are the flags and the key=value pairs of a line.
type words map[string]string

func parse(list []string) words {
	w := words{}
	for _, word := range list {
		key, value, _ := strings.Cut(word, "=")
		w[key] = value
	}
	return w
}

func (w words) has(key string) bool { _, found := w[key]; return found }

func (w words) number(key string, otherwise int) int {
	if n, err := strconv.Atoi(w[key]); err == nil {
		return n
	}
	return otherwise
}

func (w words) duration(key string) time.Duration {
	d, _ := time.ParseDuration(w[key])
	return d
}

func (s *scenario) begin(list []string) {
	w := parse(list)
	kind := messages.Kind(list[0])
	job := wire.Job{
		Session: "s", Batch: "b", CallID: "c", Tool: "t", ToolDigest: "d", Kind: kind, Input: []byte(`{"n":1}`), Notify: "co",
		QueuedAt: epoch, NotAfter: serverTime.Add(time.Hour), Dispatch: w.number("dispatch", 0), TakeOver: uint64(w.number("takeover", 0)),
		Attempt: w.number("failed", 0), DeadlineMS: w.duration("deadline").Milliseconds(),
	}
	s.m = attempt.New(config(), attempt.Call{
		Job: job, Key: wire.KeyOf("_", "s", "b").Call(0), Claims: kind == messages.KindWrite, Attempts: w.number("attempts", 3),
		Backoff: func(n int) time.Duration { return time.Duration(n) * time.Second }, Nonce: "n", Jitter: 0.5,
	})
}

func (s *scenario) step(list []string) {
	if strings.HasPrefix(list[0], "+") {
		d, err := time.ParseDuration(list[0][1:])
		if err != nil {
			s.Fatal(err)
		}
		s.now = s.now.Add(d)
		list = list[1:]
	}
	ev := s.event(list[0], parse(list[1:]))
	for _, effect := range s.m.Step(s.now, ev) {
		fmt.Fprintln(&s.out, s.show(effect))
	}
	fmt.Fprintf(&s.out, "= %s", s.m.State())
	if wake := s.m.Wake(); !wake.IsZero() {
		fmt.Fprintf(&s.out, ", wake in %v", wake.Sub(s.now).Round(time.Millisecond))
	}
	fmt.Fprintln(&s.out)
}

// event returns the event that a line names.
func (s *scenario) event(name string, w words) attempt.Event {
	nonce := s.main
	if w.has("renewal") {
		nonce = s.renewal
	}
	switch name {
	case "delivered":
		server := serverTime.Add(s.now.Sub(epoch))
		notify := "co"
		if w.has("notify") {
			notify = w["notify"]
		}
		return attempt.Delivered{
			Count: w.number("count", 1), Seq: uint64(w.number("seq", 1)), Notify: notify, Served: !w.has("unserved"),
			Queued: server.Add(-w.duration("waited")), Now: server,
		}
	case "no-result":
		return attempt.ResultRead{}
	case "result":
		return attempt.ResultRead{Result: &messages.Result{Status: messages.StatusOK}}
	case "record":
		return attempt.RecordRead{Newest: entry(w)}
	case "began":
		return attempt.Began{Span: "span"}
	case "wanted":
		return attempt.Wanted{Frozen: frozen(w)}
	case "progress":
		return attempt.Told{Event: messages.Event{Type: messages.EventProgress, Progress: &messages.Progress{Fraction: 0.5}}}
	case "ended":
		return s.ended(w)
	case "stored":
		ev := attempt.Stored{Nonce: nonce, Seq: uint64(w.number("seq", 0))}
		if nonce == "" {
			result := s.result
			if w.has("ref") {
				result.Ref, result.Outcome = &messages.Ref{Digest: "ref"}, messages.Outcome{}
			}
			ev.Result = &result
		}
		return ev
	case "overtaken":
		return attempt.Overtaken{Nonce: nonce, Newest: entry(w)}
	case "failed":
		why := map[string]attempt.Failure{"": attempt.Unknown, "large": attempt.TooLarge, "full": attempt.Full, "terminal": attempt.Terminal}[w["why"]]
		return attempt.Failed{Nonce: nonce, Why: why, Err: errors.New("no answer")}
	case "tick":
		return attempt.Tick{}
	case "stopped":
		return attempt.Stopped{Stop: wire.Stop{V: 1, Reason: "enough"}}
	case "draining":
		return attempt.Draining{}
	case "closed":
		return attempt.Closed{}
	}
	s.Fatalf("no event %q", name)
	return nil
}

func frozen(w words) call.Frozen {
	f := call.Frozen{Input: []byte(`{"n":1}`), ArgsHash: "h", OnCrash: messages.OnCrashOnce, Deadline: time.Minute}
	if w.has("hash") {
		f.ArgsHash, f.Input = w["hash"], []byte(`{"n":2}`)
	}
	if w.has("crash") {
		f.OnCrash = messages.OnCrash(w["crash"])
	}
	if w.has("bytes") {
		f.Input = []byte(`"` + strings.Repeat("x", w.number("bytes", 0)) + `"`)
	}
	return f
}

func entry(w words) attempt.Entry {
	if !w.has("seq") {
		return attempt.Entry{}
	}
	r := wire.CallRecord{
		State: wire.CallState(w["state"]), Nonce: "other", Attempt: w.number("attempt", 1), Worker: "w0", ArgsHash: "h", Fence: uint64(w.number("fence", 0)),
		OnCrash: messages.OnCrash(w["crash"]), Lapsed: w.number("lapsed", 0),
	}
	if w.has("nonce") {
		r.Nonce = w["nonce"]
	}
	if r.State == wire.Ended {
		r.Result = &messages.Result{Status: messages.StatusAborted}
	}
	if w.has("asked") {
		r.Approval = &messages.Approval{Tool: "t", ArgsHash: "h", Asked: serverTime.Add(w.duration("asked"))}
	}
	return attempt.Entry{Seq: uint64(w.number("seq", 0)), Record: r}
}

func (s *scenario) ended(w words) attempt.Event {
	r := messages.Result{CallID: "c", Tool: "t", Status: messages.StatusOK, Attempt: w.number("attempt", 1), Outcome: messages.Text("done"), Trail: &messages.Trail{}}
	switch {
	case w.has("back"):
		return attempt.Ended{Err: &call.HandBack{ArgsHash: "h", Reason: "it writes"}}
	case w.has("ask"):
		q := messages.Approval{Tool: "t", ArgsHash: "h", Rule: "r", Input: []byte(`"` + strings.Repeat("x", w.number("bytes", 1)) + `"`)}
		return attempt.Ended{Err: &call.Ask{ArgsHash: "h", Approval: q}}
	case w.has("cause"):
		return attempt.Ended{Err: s.cause}
	case w.has("refused"):
		return attempt.Ended{Err: s.refused}
	case w.has("error"):
		r.Status, r.Outcome = messages.StatusError, messages.Failed(messages.CodeToolError, "busy")
		r.Err.Retryable = w.has("retryable")
	case w.has("bytes"):
		r.Outcome = messages.Text(strings.Repeat("x", w.number("bytes", 0)))
	}
	return attempt.Ended{Result: r}
}

// show returns an effect as a line.
func (s *scenario) show(effect attempt.Effect) string {
	switch e := effect.(type) {
	case attempt.ReadResult:
		s.main = ""
		return "read the result"
	case attempt.ReadRecord:
		s.main = ""
		return "read the newest record"
	case attempt.Begin:
		return "begin" + prior(e.Prior)
	case attempt.Run:
		line := "run" + prior(e.Prior)
		if e.Job.DeadlineMS > 0 {
			line += fmt.Sprintf(", within %d ms", e.Job.DeadlineMS)
		}
		if e.Cause != nil {
			s.cause = e.Cause
			line += ", cancelled: " + e.Cause.Error()
		}
		return line
	case attempt.Grant:
		return fmt.Sprintf("grant attempt %d, fence %d, probe %v", e.Grant.Attempt, e.Grant.Fence, e.Grant.Probe)
	case attempt.Refuse:
		s.refused = e.Err
		return "refuse: " + e.Err.Error()
	case attempt.Cancel:
		s.cause = e.Cause
		return "cancel: " + e.Cause.Error()
	case attempt.Abort:
		return "abort"
	case attempt.Write:
		return s.showWrite(e)
	case attempt.WriteResult:
		s.main, s.result = "", e.Result
		return "store " + outcome(e.Result)
	case attempt.Offload:
		s.main, s.result = "", e.Result
		return "offload " + outcome(e.Result)
	case attempt.WriteHandBack:
		s.main = ""
		return "write the hand-back: " + e.Back.Reason
	case attempt.Extend:
		return "extend the delivery"
	case attempt.Notify:
		return "notify " + e.To + ": " + said(e.Notice)
	case attempt.Emit:
		return fmt.Sprintf("event %d, attempt %d: %s", e.Event.Counter, e.Event.Attempt, e.Event.Type)
	case attempt.Report:
		return "report " + outcome(e.Result)
	case attempt.Count:
		words := []string{"a claim", "a refused claim", "a lost lease", "progress"}
		if int(e.What) >= len(words) {
			s.Fatalf("the counted event %d has no word here", e.What)
		}
		return "count " + words[e.What]
	case attempt.Log:
		return fmt.Sprintf("log %d: %s", e.Level, e.Text)
	case attempt.Close:
		line := fmt.Sprintf("close: attempt %d, fence %d", e.End.Attempt, e.End.Fence)
		for _, part := range []string{e.End.Became, e.End.Failure} {
			if part != "" {
				line += ", " + part
			}
		}
		if e.End.Err != nil {
			line += ": " + strings.ReplaceAll(e.End.Err.Error(), "\n", "; ")
		}
		return line
	case attempt.Settle:
		return "settle: " + map[attempt.Settlement]string{
			attempt.Unsettled: "leave it", attempt.Ack: "ack", attempt.Term: "term, " + e.Reason, attempt.Nak: fmt.Sprintf("nak for %v", e.After),
		}[e.How]
	}
	return fmt.Sprintf("%+v", effect)
}

func (s *scenario) showWrite(w attempt.Write) string {
	r := w.Record
	if r.State == wire.Renewed {
		s.renewal = r.Nonce
	} else {
		s.main = r.Nonce
	}
	line := fmt.Sprintf("write %s behind %d: %s, attempt %d", r.State, w.Behind, r.Nonce, r.Attempt)
	if !w.Until.IsZero() {
		line += fmt.Sprintf(", within %v", w.Until.Sub(s.now))
	}
	if r.Lapsed > 0 {
		line += fmt.Sprintf(", %d lapsed", r.Lapsed)
	}
	if r.Lapsed == 0 && r.Unsure() && r.State == wire.Released {
		line += ", unsure"
	}
	if r.Fence > 0 {
		line += fmt.Sprintf(", fence %d", r.Fence)
	}
	if r.RetryAfterMS > 0 {
		line += fmt.Sprintf(", again in %d ms", r.RetryAfterMS)
	}
	if r.Input != nil {
		line += ", with its input"
	}
	if q := r.Approval; q != nil {
		line += fmt.Sprintf(", asked at %v until %v", q.Asked.Sub(serverTime), q.Expires.Sub(serverTime))
	}
	if r.Result != nil {
		line += ", " + outcome(*r.Result)
	}
	return line
}

func prior(r *wire.CallRecord) string {
	if r == nil {
		return ""
	}
	return " from " + string(r.State)
}

func said(n wire.Notice) string {
	switch {
	case n.Result != nil:
		return outcome(*n.Result)
	case n.Hand != nil:
		return "handed back"
	case n.LetGo != nil:
		return fmt.Sprintf("let go for %d ms, %d failed, job %d", n.LetGo.AfterMS, n.LetGo.Attempt, n.LetGo.Job)
	case n.Record != nil && n.Running:
		return fmt.Sprintf("runs, %s at %d", n.Record.State, n.Seq)
	case n.Record != nil:
		return fmt.Sprintf("%s at %d", n.Record.State, n.Seq)
	}
	return "runs"
}

func outcome(r messages.Result) string {
	line := string(r.Status)
	if r.Err != nil {
		line += fmt.Sprintf(" (%s): %s", r.Err.Code, r.Err.Message)
	}
	if r.Ref != nil {
		line += " by ref"
	}
	return line
}
