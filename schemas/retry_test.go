package schemas

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

func TestBackoff(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		retry Retry
		want  []time.Duration // after attempt 1, 2, ...
	}{
		{Retry{Attempts: 9}, []time.Duration{500 * ms, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second}},
		{Retry{Attempts: 3, BackoffMS: 1, MaxBackoffMS: 5}, []time.Duration{1 * ms, 2 * ms, 4 * ms, 5 * ms, 5 * ms}},
		{Retry{Attempts: 3, BackoffMS: 2, MaxBackoffMS: 8}, []time.Duration{2 * ms, 4 * ms, 8 * ms, 8 * ms}},
		{Retry{Attempts: 3, BackoffMS: 7, MaxBackoffMS: 7}, []time.Duration{7 * ms, 7 * ms}},
		{Retry{Attempts: 3, MaxBackoffMS: 100}, []time.Duration{100 * ms, 100 * ms}},
		{Retry{Attempts: 3, BackoffMS: 60_000}, []time.Duration{time.Minute, time.Minute}},
		{Retry{}, []time.Duration{500 * ms, time.Second}},
		{Retry{BackoffMS: 9, MaxBackoffMS: 3}, []time.Duration{3 * ms, 3 * ms}},
		{Retry{BackoffMS: math.MaxInt64, MaxBackoffMS: math.MaxInt64}, []time.Duration{time.Hour, time.Hour}},
	} {
		for i, want := range tt.want {
			if got := tt.retry.Backoff(i + 1); got != want {
				t.Errorf("%+v after attempt %d: got %v, want %v", tt.retry, i+1, got, want)
			}
		}
		if last := tt.retry.Backoff(math.MaxInt); last != tt.want[len(tt.want)-1] && tt.retry != (Retry{}) {
			t.Errorf("%+v after very many: got %v", tt.retry, last)
		}
		if first := tt.retry.Backoff(-1); first != tt.want[0] {
			t.Errorf("%+v after none: got %v", tt.retry, first)
		}
	}
	if got := (Retry{BackoffMS: 1, MaxBackoffMS: math.MaxInt64}).Backoff(math.MaxInt); got != time.Hour {
		t.Errorf("without a limit: got %v", got)
	}
}

func TestRetryDefaults(t *testing.T) {
	read := Tool{Name: "x", Kind: messages.KindRead}
	for _, tt := range []struct{ retry, want Retry }{
		{Retry{}, Retry{}},
		{Retry{Attempts: 1}, Retry{}},
		{Retry{Attempts: 1, BackoffMS: 3}, Retry{}},
		{Retry{Attempts: 2}, Retry{2, 500, 10_000}},
		{Retry{Attempts: 10, MaxBackoffMS: 20}, Retry{10, 20, 20}},
		{Retry{Attempts: 2, BackoffMS: 3_600_000}, Retry{2, 3_600_000, 3_600_000}},
		{Retry{Attempts: 2, BackoffMS: 5, MaxBackoffMS: 6}, Retry{2, 5, 6}},
	} {
		read.Retry = tt.retry
		got, err := read.WithDefaults()
		if err != nil || got.Retry != tt.want {
			t.Errorf("%+v: got %+v, %v, want %+v", tt.retry, got.Retry, err, tt.want)
			continue
		}
		again, err := got.WithDefaults()
		if err != nil || again.Retry != got.Retry || again.Digest != got.Digest {
			t.Errorf("%+v filled twice: %+v, %v", tt.retry, again.Retry, err)
		}
	}
}

func TestRetryIsRefused(t *testing.T) {
	const once = "a write with on_crash: once is never run again, because a run that failed may have had its effect; " +
		"only reads, computes and writes with on_crash: idempotent or checkable may be"
	for _, tt := range []struct {
		kind    messages.Kind
		onCrash messages.OnCrash
		retry   Retry
		want    string // nothing: accepted
	}{
		{messages.KindRead, "", Retry{Attempts: -1}, "attempts is -1; want 1 to 10"},
		{messages.KindRead, "", Retry{Attempts: 11}, "attempts is 11; want 1 to 10"},
		{messages.KindRead, "", Retry{Attempts: 2, BackoffMS: -5}, "backoff is -5 ms; want 1ms to 1h"},
		{messages.KindRead, "", Retry{Attempts: 2, BackoffMS: 3_600_001}, "backoff is 3600001 ms; want 1ms to 1h"},
		{messages.KindRead, "", Retry{Attempts: 2, MaxBackoffMS: -5}, "max_backoff is -5 ms; want 1ms to 1h"},
		{messages.KindRead, "", Retry{Attempts: 2, MaxBackoffMS: 3_600_001}, "max_backoff is 3600001 ms; want 1ms to 1h"},
		{messages.KindRead, "", Retry{Attempts: 2, BackoffMS: 3, MaxBackoffMS: 2}, "max_backoff is shorter than backoff"},
		{messages.KindRead, "", Retry{BackoffMS: 3}, "attempts is missing"},
		{"", "", Retry{Attempts: 2}, once},
		{messages.KindWrite, messages.OnCrashOnce, Retry{Attempts: 2}, once},
		{messages.KindWrite, messages.OnCrashOnce, Retry{Attempts: 1}, ""},
		{messages.KindWrite, messages.OnCrashIdempotent, Retry{Attempts: 2}, ""},
		{messages.KindWrite, messages.OnCrashCheckable, Retry{Attempts: 2}, ""},
		{messages.KindCompute, "", Retry{Attempts: 2}, ""},
	} {
		_, err := Tool{Name: "x", Kind: tt.kind, OnCrash: tt.onCrash, Retry: tt.retry}.WithDefaults()
		got := ""
		if err != nil {
			got = err.Error()
		}
		if tt.want != "" {
			tt.want = "tool x: retry: " + tt.want
		}
		if got != tt.want {
			t.Errorf("%s %s %+v: got %q, want %q", tt.kind, tt.onCrash, tt.retry, got, tt.want)
		}
	}
}

// Old journals name tools by digest. So a tool without a retry policy keeps the digest from
// before there were retry policies.
func TestRetryIsPartOfThePromiseOnlyWhereThereIsOne(t *testing.T) {
	tool, err := Tool{Name: "x", Kind: messages.KindRead}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if body := string(rawjson.MustMarshal(tool)); strings.Contains(body, "retry") {
		t.Errorf("got %s", body)
	}
	if want := messages.Digest([]byte(`{"name":"x","kind":"read","input_schema":{"type":"object"},"timeout_ms":5000,"pool":"default"}`)); tool.Digest != want {
		t.Errorf("the digest changed: got %s, want %s", tool.Digest, want)
	}
	tool.Retry = Retry{Attempts: 2}
	patient, err := tool.WithDefaults()
	if err != nil || patient.Digest == tool.Digest {
		t.Errorf("with a policy: the same digest, %v", err)
	}
}
