package httpapi_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// A question is listed and shown. Of the decisions that are sent, only the one that its
// approver has signed counts.
func TestApprovals(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/batches/b"
	if a := f.do("PUT", path, message("refund"), "Prefer", "wait=0"); a.Status != http.StatusAccepted {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	var list messages.PendingList
	f.until("the question is listed", func() bool {
		list = decode[messages.PendingList](t, f.do("GET", "/v1/approvals", "").Body)
		return len(list.Pending) == 1
	})
	question := "/v1/approvals/" + list.Pending[0].ID
	shown := decode[messages.Approval](t, f.do("GET", question, "").Body)
	if string(shown.Input) != `{"n":0}` || shown.Tool != "refund" {
		t.Fatalf("got %+v", shown)
	}
	if a := f.do("GET", "/v1/approvals/nothing", ""); a.Status != http.StatusNotFound || a.code() != "not_pending" {
		t.Errorf("an unknown question: %d %s", a.Status, a.Body)
	}
	file := filepath.Join(t.TempDir(), "alice.nk")
	must(t, f.alice.Write(file))
	signer, err := client.ReadSigner("alice", file)
	must(t, err)
	signed, err := signer.Sign(shown, messages.Decision{Verdict: messages.VerdictApprove})
	must(t, err)
	body := string(rawjson.MustMarshal(signed))
	for name, row := range map[string]struct {
		path, body string
		status     int
		code       string
	}{
		"unsigned":         {question, `{"approval":"` + shown.ID + `","tenant":"_","verdict":"approve"}`, 404, "not_pending"},
		"forged":           {question, strings.Replace(body, `"approve"`, `"deny"`, 1), 403, "bad_signature"},
		"another question": {"/v1/approvals/0123", body, 409, "approval_mismatch"},
		"another tenant":   {question, strings.Replace(body, `"tenant":"_"`, `"tenant":"red.*"`, 1), 409, "approval_mismatch"},
		"a key twice":      {question, `{"approval":"a","approval":"b"}`, 422, "malformed_message"},
		"no JSON":          {question, `approve`, 422, "malformed_message"},
	} {
		if a := f.do("POST", row.path+"/decision", row.body); a.Status != row.status || a.code() != row.code {
			t.Errorf("%s: got %d %s, want %d %s", name, a.Status, a.Body, row.status, row.code)
		}
	}
	a := f.do("POST", question+"/decision", body)
	if got := decode[messages.DecisionAnswer](t, a.Body); a.Status != http.StatusOK || got.State != messages.DecisionGranted {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if reply := decode[messages.Reply](t, f.do("PUT", path, message("refund")).Body); reply.Results[0].Status != messages.StatusOK {
		t.Errorf("got %+v", reply)
	}
	if a := f.do("POST", question+"/decision", body); a.Status != http.StatusNotFound && a.Status != http.StatusOK {
		t.Errorf("decided again: %d %s", a.Status, a.Body)
	}
}
