package bus

import (
	"context"
	"encoding/json"
	"time"
)

// Results of SyncMode.
const (
	SyncAlways   = "always"   // an acknowledged write survives a power loss
	SyncInterval = "interval" // an acknowledged write may be lost in a power loss
	SyncUnknown  = "unknown"  // the server does not tell this user
)

// syncAnswers is how long SyncMode waits, after each answer, for an answer of another server
// of the cluster.
const syncAnswers = 250 * time.Millisecond

// SyncMode returns when the servers write to disk, as far as this user can see. The embedded
// server answers every user; other servers answer only their system account. The result is
// SyncAlways only if every JetStream server that answers always syncs.
func (c *Conn) SyncMode(ctx context.Context) string {
	if local, ok := c.opts.InProcess.(interface{ SyncAlways() bool }); ok {
		return syncMode(local.SyncAlways())
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	quiet := time.AfterFunc(CallTimeout, cancel)
	defer quiet.Stop()
	mode := SyncUnknown
	_ = c.Stream(ctx, "$SYS.REQ.SERVER.PING.JSZ", nil, []byte("{}"), func(m Msg) bool {
		var answer struct {
			Data struct {
				Disabled bool `json:"disabled"`
				Config   struct {
					Always bool `json:"sync_always"`
				} `json:"config"`
			} `json:"data"`
		}
		stores := json.Unmarshal(m.Data, &answer) == nil && !answer.Data.Disabled
		if stores && mode != SyncInterval {
			mode = syncMode(answer.Data.Config.Always)
		}
		quiet.Reset(syncAnswers)
		return true
	})
	return mode
}

func syncMode(always bool) string {
	if always {
		return SyncAlways
	}
	return SyncInterval
}
