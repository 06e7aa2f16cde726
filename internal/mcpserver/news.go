package mcpserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/messages"
)

// beatEvery is the time between two signs of life for a running call.
const beatEvery = 15 * time.Second

// news reports the progress of a call to its client, if the client has asked for progress.
type news struct {
	ctx     context.Context // context of the request; the SDK finds the client with it
	session *mcp.ServerSession
	token   any // nil: the client has not asked
	beats   sync.WaitGroup
	ended   chan struct{}

	mu    sync.Mutex
	count float64 // number of notifications sent; guarded by mu
}

// newNews starts the signs of life of a call. stop ends them.
func newNews(ctx context.Context, req *mcp.CallToolRequest) *news {
	n := &news{ctx: ctx, session: req.Session, token: req.Params.GetProgressToken(), ended: make(chan struct{})}
	if n.token != nil {
		n.beats.Go(n.beat)
	}
	return n
}

// stop ends the signs of life. After it has returned, none is sent.
func (n *news) stop() {
	close(n.ended)
	n.beats.Wait()
}

func (n *news) beat() {
	beats := time.NewTicker(beatEvery)
	defer beats.Stop()
	for {
		select {
		case <-n.ended:
			return
		case <-beats.C:
			n.send("still open")
		}
	}
}

// event reports an event.
func (n *news) event(e messages.Event) {
	if text := textOf(e); text != "" && n.token != nil {
		n.send(text)
	}
}

func (n *news) send(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	// The client may be gone.
	_ = n.session.NotifyProgress(n.ctx, &mcp.ProgressNotificationParams{ProgressToken: n.token, Progress: n.count, Message: text})
}

// textOf returns a short text about an event. It returns "" if a person need not see the
// event.
func textOf(e messages.Event) string {
	switch e.Type {
	case messages.EventStart:
		return e.Tool + " is accepted"
	case messages.EventRunning:
		return e.Tool + " runs"
	case messages.EventAwaiting:
		return e.Tool + " waits for a person"
	case messages.EventEnd:
		return e.Tool + " has ended"
	case messages.EventProgress:
		return progressText(e.Progress)
	}
	return ""
}

func progressText(p *messages.Progress) string {
	if p == nil {
		return ""
	}
	if p.Fraction <= 0 {
		return p.Text
	}
	return strings.TrimSpace(fmt.Sprintf("%.0f %% %s", 100*p.Fraction, p.Text))
}
