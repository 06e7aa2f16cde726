package bus

import (
	"context"
	"encoding/json"
	"time"
)

// The values that SyncMode returns.
const (
	SyncAlways   = "always"   // an acknowledged write survives a power loss
	SyncInterval = "interval" // an acknowledged write may be lost with the power
	SyncUnknown  = "unknown"  // the server does not tell this user
)

// syncAnswers is how long SyncMode waits for another server of a cluster after each answer.
const syncAnswers = 250 * time.Millisecond

// SyncMode returns when the servers write to the disk, as far as this user can see. The embedded
// server reports it; other servers report it only to their system account. SyncMode returns
// SyncAlways only if every server with JetStream that answers always syncs.
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
