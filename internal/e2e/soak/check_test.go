package soak

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/soak/ledger"
	"github.com/toolfleet/toolfleet/messages"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func after(d time.Duration) time.Time { return began.Add(d) }

// good returns a history that every rule accepts. It has two batches of a session, a put that
// another worker took over, and a book whose worker was killed.
func good() *History {
	first := asked("b1", "look", "book", "look", "put")
	second := asked("b2", "look", "put", "book", "book")
	second.Reply.Results[1].Attempt = 2
	second.Reply.Results[2].Status = messages.StatusOutcomeUnknown
	second.Reply.Results[2].Outcome = messages.Failed(messages.CodeOutcomeUnknown, "")
	second.Reply.Results[3].Status = messages.StatusSkipped
	second.Reply.Results[3].Outcome = messages.Failed(messages.CodeSkipped, "")
	second.Claims = map[int][]Claim{2: {{"w3", after(6 * time.Second)}}}
	second.Replied = after(10 * time.Second)
	h := &History{
		Batches: []*Batch{first, second},
		Faults: []Fault{
			{Kind: "worker", Member: "worker-1", Process: "w1", Act: Kill, At: after(3 * time.Second), Until: after(4 * time.Second)},
			{Kind: "worker", Member: "worker-3", Process: "w3", Act: Kill, At: after(7 * time.Second), Until: after(8 * time.Second)},
		},
		Lease: 2 * time.Second,
		Lines: map[string]map[int]int{"b1": {0: 1, 1: 1, 2: 1, 3: 1}, "b2": {0: 1, 1: 1, 2: 1, 3: 1}},
	}
	h.run("b1", 0, "look", 0, 1, "w1")
	h.run("b1", 1, "book", 10, 1, "w1")
	h.run("b1", 2, "look", 0, 1, "w1")
	h.run("b1", 3, "put", 11, 1, "w1")
	h.run("b2", 0, "look", 0, 1, "w2")
	h.point(ledger.Start, "b2", 1, "put", 20, 1, "w1")
	h.run("b2", 1, "put", 21, 2, "w2")
	h.point(ledger.Start, "b2", 2, "book", 22, 1, "w3")
	return h
}

func asked(id string, tools ...string) *Batch {
	b := &Batch{ID: id, Session: "s", Digest: "d-" + id, Sent: began, Acked: began, Replied: after(2 * time.Second), Copies: map[string]bool{"x": true}}
	b.Reply = messages.Reply{Batch: messages.BatchID(id), Session: "s", Status: messages.ReplyCompleted, Digest: b.Digest}
	for i, name := range tools {
		call := Call{ID: fmt.Sprintf("call_%d", i), Tool: name}
		b.Calls = append(b.Calls, call)
		b.Reply.Results = append(b.Reply.Results, messages.Result{
			Index: i, CallID: messages.CallID(call.ID), Tool: name, Status: messages.StatusOK, Attempt: 1,
		})
	}
	return b
}

func (h *History) point(p ledger.Point, batch string, index int, tool string, fence uint64, attempt int, worker string) {
	h.Ledger = append(h.Ledger, ledger.Entry{
		Point: p, Tool: tool, Session: "s", Batch: batch, Index: index, Key: fmt.Sprint("key-", batch, index),
		Fence: fence, Attempt: attempt, Worker: worker, At: began.Add(time.Duration(len(h.Ledger)) * time.Second).UnixNano(),
	})
}

func (h *History) run(batch string, index int, tool string, fence uint64, attempt int, worker string) {
	h.point(ledger.Start, batch, index, tool, fence, attempt, worker)
	h.point(ledger.End, batch, index, tool, fence, attempt, worker)
}

// swap exchanges two lines of the ledger. The first line is 0.
func (h *History) swap(i, j int) { h.Ledger[i], h.Ledger[j] = h.Ledger[j], h.Ledger[i] }

func TestAGoodHistoryPasses(t *testing.T) {
	for _, v := range Check(*good()) {
		t.Error(v)
	}
}

// Each case changes the good history in one place, and the check reports the rule that this
// breaks.
func TestForgedHistoriesAreCaught(t *testing.T) {
	for name, tc := range map[string]struct {
		forge func(*History)
		want  Rule
	}{
		"no reply":                        {func(h *History) { h.Batches[0].Replied = time.Time{} }, Lost},
		"refused":                         {func(h *History) { h.Batches[0].Refused = "internal" }, Lost},
		"two replies":                     {func(h *History) { h.Batches[0].Copies["y"] = true }, Differs},
		"a result is missing":             {func(h *History) { r := &h.Batches[0].Reply; r.Results = r.Results[:3] }, Malformed},
		"results out of order":            {func(h *History) { r := h.Batches[0].Reply.Results; r[0], r[2] = r[2], r[0] }, Malformed},
		"reply of another body":           {func(h *History) { h.Batches[0].Reply.Digest = "other" }, Malformed},
		"reply of another batch":          {func(h *History) { h.Batches[0].Reply.Batch = "b2" }, Malformed},
		"book had twice":                  {func(h *History) { h.run("b1", 1, "book", 30, 2, "w2") }, Twice},
		"one claim, two starts":           {func(h *History) { h.Ledger[11].Fence = 20 }, Twice},
		"one attempt, two starts":         {func(h *History) { h.Ledger[11].Attempt = 1; h.Ledger[12].Attempt = 1 }, Twice},
		"put under two keys":              {func(h *History) { h.Ledger[11].Key = "other" }, Twice},
		"two calls, one key":              {func(h *History) { h.Ledger[6].Key, h.Ledger[7].Key = "key-b11", "key-b11" }, Untrue},
		"ok, never run":                   {func(h *History) { h.Ledger = append(h.Ledger[:2:2], h.Ledger[4:]...) }, Untrue},
		"ok, run half":                    {func(h *History) { h.Ledger = append(h.Ledger[:7:7], h.Ledger[8:]...) }, Untrue},
		"ok, of another attempt":          {func(h *History) { h.Batches[1].Reply.Results[1].Attempt = 3 }, Untrue},
		"ok, but its input asked to fail": {func(h *History) { h.Batches[0].Calls[1].Input.Fail = true }, Untrue},
		"a read that never ended":         {func(h *History) { h.Ledger = append(h.Ledger[:1:1], h.Ledger[2:]...) }, Untrue},
		"skipped, and run":                {func(h *History) { h.run("b2", 3, "book", 40, 1, "w2") }, Untrue},
		"expired, and run":                {func(h *History) { h.Batches[0].Reply.Results[1].Status = messages.StatusExpired }, Untrue},
		"aborted without a request":       {func(h *History) { aborted(h, 0); h.Batches[0].Abort = time.Time{} }, Malformed},
		"aborted in a completed batch": {func(h *History) {
			aborted(h, 1)
			h.Batches[0].Reply.Status, h.Batches[0].Abort = messages.ReplyCompleted, time.Time{}
		}, Untrue},
		"aborted, and it was done":           {func(h *History) { aborted(h, 1) }, Untrue},
		"a failure, but the effect happened": {func(h *History) { fail(h, messages.CodeWorkerLost) }, Untrue},
		"a write without a fence":            {func(h *History) { h.Ledger[2].Fence = 0 }, Untrue},
		"a write without a key":              {func(h *History) { h.Ledger[2].Key = "" }, Untrue},
		"write before a read's end":          {func(h *History) { h.swap(1, 2) }, Order},
		"read before a write's end":          {func(h *History) { h.swap(3, 4) }, Order},
		"batch before the one before":        {func(h *History) { h.swap(7, 8) }, Order},
		"after an unknown start":             {func(h *History) { h.Batches = append(h.Batches, asked("b3", "look")); late(h) }, Order},
		"timeout":                            {func(h *History) { h.Batches[0].Reply.Results[0].Status = messages.StatusTimeout }, Untrue},
		"expired":                            {func(h *History) { h.Batches[0].Reply.Results[1].Status = messages.StatusExpired }, Stranded},
		"a read that nobody ran again":       {func(h *History) { lost(h, 0, messages.StatusError, messages.CodeWorkerLost) }, Stranded},
		"idempotent, not taken over":         {func(h *History) { lost(h, 3, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown) }, Stranded},
		"unknown without a fault":            {func(h *History) { h.Faults = h.Faults[:1] }, Unknown},
		"unknown, killed before":             {func(h *History) { h.Faults[1].Until = after(5 * time.Second) }, Unknown},
		"unknown, killed after":              {func(h *History) { h.Faults[1].At = after(11 * time.Second) }, Unknown},
		"unknown, its worker got SIGTERM":    {func(h *History) { h.Faults[1].Act = Term }, Unknown},
		"unknown, no server long before":     {func(h *History) { noServer(h, 1, 3) }, Unknown},
		"unknown, and never started": {func(h *History) {
			noServer(h, 6, 6)
			h.Ledger = h.Ledger[:13:13]
		}, Unknown},
		"a call without a line":         {func(h *History) { delete(h.Lines["b1"], 2) }, Audit},
		"a call with two lines":         {func(h *History) { h.Lines["b2"][0] = 2 }, Audit},
		"unknown, without a claim":      {func(h *History) { h.Batches[1].Claims = nil }, Unknown},
		"an effect without a call":      {func(h *History) { h.run("b9", 0, "book", 50, 1, "w1") }, Stray},
		"an effect of another tool":     {func(h *History) { h.Ledger[4].Tool = "book"; h.Ledger[5].Tool = "book" }, Stray},
		"an effect in another session":  {func(h *History) { h.Ledger[2].Session = "t" }, Stray},
		"shut out, and was killed":      {func(h *History) { shutOut(h) }, Stray},
		"shut out, another was paused":  {func(h *History) { f := shutOut(h); f.Act, f.Process = Pause, "w2" }, Stray},
		"shut out, paused later":        {func(h *History) { f := shutOut(h); f.Act, f.At = Pause, after(time.Minute) }, Stray},
		"left in the log":               {func(h *History) { h.Left = []string{"batch b1"} }, Leftover},
		"a process ended alone":         {func(h *History) { died(h, "exit status 1", 10*time.Second) }, EndedItself},
		"a process that tried for long": {func(h *History) { died(h, "exit status 1", 4*time.Second); h.Faults[2].Born = after(-time.Minute) }, EndedItself},
		"ended, and then no server":     {func(h *History) { died(h, "exit status 1", 2500*time.Millisecond) }, EndedItself},
		"a panic while it started":      {func(h *History) { died(h, "exit status 2", 4*time.Second) }, EndedItself},
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			tc.forge(h)
			for _, v := range Check(*h) {
				if v.Rule == tc.want {
					return
				}
			}
			t.Errorf("not caught as %s; found %v", tc.want, Check(*h))
		})
	}
}

// fail gives the first book an error with this code.
func fail(h *History, code messages.Code) {
	r := &h.Batches[0].Reply.Results[1]
	r.Status, r.Outcome = messages.StatusError, messages.Failed(code, "")
}

// lost ends a call of the first batch because its worker was lost. The faults explain that.
func lost(h *History, index int, status messages.Status, code messages.Code) {
	r := &h.Batches[0].Reply.Results[index]
	r.Status, r.Outcome = status, messages.Failed(code, "")
	h.Batches[0].Replied = after(5 * time.Second)
	h.Batches[0].Claims = map[int][]Claim{index: {{"w1", after(2 * time.Second)}}}
}

// late adds a look of a third batch before the end of a book with an unknown outcome.
func late(h *History) {
	h.run("b3", 0, "look", 0, 1, "w2")
	book, n := h.Ledger[13], len(h.Ledger)
	h.Ledger = append(append(h.Ledger[:13:13], h.Ledger[14:n]...), book)
}

// died adds a process that was started and ended by itself a second later. The server was
// killed in the fourth second.
func died(h *History, status string, at time.Duration) {
	h.Faults[0].Member = server
	h.Faults = append(h.Faults, Fault{Act: Died, Process: "c1", Status: status, At: after(at), Born: after(at - time.Second)})
}

// aborted ends a call of the first batch as aborted.
func aborted(h *History, index int) {
	b := h.Batches[0]
	b.Abort, b.Reply.Status = began, messages.ReplyAborted
	b.Reply.Results[index].Status, b.Reply.Results[index].Outcome = messages.StatusAborted, messages.Failed(messages.CodeAborted, "")
}

// shutOut makes w1 start a put again that another worker has taken over. It returns the fault
// that hit w1.
func shutOut(h *History) *Fault {
	h.point(ledger.Start, "b2", 1, "put", 19, 3, "w1")
	return &h.Faults[0]
}

// noServer records that the server was away between two seconds, and removes the fault of w3.
func noServer(h *History, from, to int) {
	h.Faults[1] = Fault{Member: server, Process: "server.1", Act: Kill, At: after(time.Duration(from) * time.Second), Until: after(time.Duration(to) * time.Second)}
}

// These histories look wrong and are right: the check reports nothing.
func TestAllowedHistoriesPass(t *testing.T) {
	for name, allow := range map[string]func(*History){
		"the same reply was seen often": func(*History) {},
		"unknown, and it was claimed only": func(h *History) {
			h.Ledger = h.Ledger[:len(h.Ledger)-1]
		},
		"unknown, and its tool ended long after": func(h *History) {
			h.Batches = append(h.Batches, asked("b3", "put"))
			h.run("b3", 0, "put", 30, 1, "w1")
			h.Lines["b3"] = map[int]int{0: 1}
			h.point(ledger.End, "b2", 2, "book", 22, 1, "w3")
		},
		"a paused worker is shut out":    func(h *History) { shutOut(h).Act = Pause },
		"a lost run ends late":           func(h *History) { h.point(ledger.End, "b2", 1, "put", 20, 1, "w1") },
		"a read that is run again, late": func(h *History) { h.run("b1", 0, "look", 0, 2, "w3") },
		"a tool that failed": func(h *History) {
			h.Batches[0].Calls[1].Input.Fail = true
			fail(h, messages.CodeToolError)
		},
		"an idempotent call that was stopped while it ran": func(h *History) { aborted(h, 3) },
		"an idempotent call that killed five workers": func(h *History) {
			lost(h, 3, messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown)
			claims := h.Batches[0].Claims
			claims[3] = append(claims[3], claims[3][0], claims[3][0], claims[3][0], claims[3][0])
		},
		"unknown, stopped while it ran": func(h *History) {
			h.Faults = h.Faults[:1]
			h.Batches[1].Abort = after(5 * time.Second)
		},
		"unknown, the server was away": func(h *History) { noServer(h, 3, 5) },
		"unknown, the machine stalled": func(h *History) {
			h.Faults[1] = Fault{Act: Stall, Member: "machine", At: after(4 * time.Second), Until: after(5 * time.Second)}
		},
		"a process that found no server": func(h *History) { died(h, "exit status 1", 4*time.Second) },
		"never acknowledged, never answered": func(h *History) {
			h.Batches = append(h.Batches, &Batch{ID: "b3", Session: "s"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			allow(h)
			for _, v := range Check(*h) {
				t.Error(v)
			}
		})
	}
}

// answered returns a history in which people were asked about the calls of a batch. They
// approved one call, edited one, denied one, and did not answer about the last. Two people
// disagreed about the first call, and one decision counted.
func answered() *History {
	b := asked("b1", "refund", "transfer", "refund", "refund")
	for i, code := range map[int]messages.Code{2: messages.CodeDeniedByUser, 3: messages.CodeApprovalExpired} {
		r := &b.Reply.Results[i]
		r.Status, r.Outcome = messages.StatusDenied, messages.Failed(code, "")
	}
	b.Reply.Results[3].Status = messages.StatusExpired
	h := &History{
		Lines: map[string]map[int]int{"b1": {0: 1, 1: 1, 2: 1, 3: 1}}, Batches: []*Batch{b}, Decisions: map[string][]Decision{
			"b1#0": {{By: "alice", At: began, Verdict: messages.VerdictApprove, State: messages.DecisionGranted}, {By: "bob", At: began, Verdict: messages.VerdictDeny}},
			"b1#1": {{By: "bob", At: began, Verdict: messages.VerdictEdit, MS: 50, State: messages.DecisionGranted}},
			"b1#2": {{By: "alice", At: began, Verdict: messages.VerdictDeny, State: messages.DecisionDenied}},
		}}
	h.run("b1", 0, "refund", 1, 1, "w1")
	h.run("b1", 1, "transfer", 2, 1, "w1")
	h.Ledger[2].MS, h.Ledger[3].MS = 50, 50
	return h
}

func TestDecisionsAreComparedWithWhatRan(t *testing.T) {
	for _, v := range Check(*answered()) {
		t.Error(v)
	}
	for name, tc := range map[string]struct {
		forge func(*History)
		want  Rule
	}{
		"no decision":                                     {func(h *History) { delete(h.Decisions, "b1#0") }, Unasked},
		"somebody else's call":                            {func(h *History) { h.Decisions["b1#0"], h.Decisions["b1#2"] = h.Decisions["b1#2"], h.Decisions["b1#0"] }, Unasked},
		"it ran before the decision":                      {func(h *History) { h.Decisions["b1#0"][0].At = after(time.Hour) }, Unasked},
		"it ran without the edit":                         {func(h *History) { h.Ledger[2].MS = 0 }, Unasked},
		"denied, and run":                                 {func(h *History) { h.run("b1", 2, "refund", 3, 1, "w1") }, Untrue},
		"expired, and run":                                {func(h *History) { h.run("b1", 3, "refund", 3, 1, "w1") }, Untrue},
		"run twice":                                       {func(h *History) { h.run("b1", 0, "refund", 3, 2, "w1") }, Twice},
		"two decisions counted":                           {func(h *History) { h.Decisions["b1#0"][1].State = messages.DecisionDenied }, Twice},
		"a decision says denied, and the call ran":        {func(h *History) { h.Decisions["b1#0"][1].State = messages.DecisionDenied }, Untrue},
		"a decision says granted, and the call is denied": {func(h *History) { h.Decisions["b1#2"][0].State = messages.DecisionGranted }, Untrue},
		"denied without a decision":                       {func(h *History) { delete(h.Decisions, "b1#2") }, Untrue},
		"a call without approval expired":                 {func(h *History) { h.Batches[0].Calls[3].Tool, h.Batches[0].Reply.Results[3].Tool = "book", "book" }, Stranded},
	} {
		t.Run(name, func(t *testing.T) {
			h := answered()
			tc.forge(h)
			for _, v := range Check(*h) {
				if v.Rule == tc.want {
					return
				}
			}
			t.Errorf("not caught as %s; found %v", tc.want, Check(*h))
		})
	}
}
