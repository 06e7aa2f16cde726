package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/resultread"
)

const (
	// keepTime limits how long a call waits until its whole output is stored.
	keepTime = 30 * time.Second
	// maxWhole is the largest size of a whole output, in bytes of JSON. The output has at most
	// 64 MiB, and quoting can make it longer.
	maxWhole = 256 << 20
)

// wholes stores the whole outputs of calls whose model reads only a part.
type wholes struct{ store objects.Store }

// keep stores an output. It returns the ref by which the session of the job can read it.
func (w wholes) keep(ctx context.Context, job wire.Job, whole messages.Outcome) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	whole.Details = nil
	data, err := rawjson.Marshal(whole)
	if err != nil {
		return "", err
	}
	ref := messages.Digest(rawjson.MustMarshal([]any{job.Batch, job.Index, messages.Digest(data)}))[:16]
	if err := w.store.PutNamed(ctx, wholeName(job.Tenant, job.Session, ref), data); err != nil {
		return "", err
	}
	return ref, nil
}

// read returns the output that a ref names in the session of a call.
func (w wholes) read(ctx context.Context, call tool.Call, ref string) (whole messages.Outcome, err error) {
	data, err := w.store.GetNamed(ctx, wholeName(call.Tenant, call.Session, ref), maxWhole)
	if errors.Is(err, bus.ErrNotFound) {
		return whole, resultread.ErrUnknown
	}
	if err == nil {
		err = json.Unmarshal(data, &whole)
	}
	if err != nil {
		return whole, fmt.Errorf("result %s: %w", ref, err)
	}
	return whole, nil
}

// wholeName returns the name of a stored output. The session is part of the name, so a ref
// cannot be used in another session.
func wholeName(tenant messages.TenantID, session messages.SessionID, ref string) string {
	return messages.Digest([]byte(strings.Join([]string{"result", messages.Token(tenant), messages.Token(session), ref}, ".")))
}
