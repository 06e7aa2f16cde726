package bus

import (
	"context"
	"encoding/json"
	"time"
)

// What SyncMode can say.
const (
	SyncAlways   = "always"   // what is acknowledged survives a power loss
	SyncInterval = "interval" // it may not
	SyncUnknown  = "unknown"  // the server does not tell clients like this one
)

// syncAnswers is how long SyncMode listens for further servers of a cluster after the last one answered.
const syncAnswers = 250 * time.Millisecond

// SyncMode is when the servers write to the disk, as far as this client can see: a server tells only its system
// account, except the embedded one. Always is said only when every server that answers does.
func (c *Conn) SyncMode(ctx context.Context) string {
	if local, ok := c.opts.InProcess.(interface{ SyncAlways() bool }); ok {
		return syncMode(local.SyncAlways())
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	quiet := time.AfterFunc(callTimeout, cancel)
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
