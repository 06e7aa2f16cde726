// Command progress-bar shows a running batch as a bar of 30 characters. It reads the batch's public
// events; it knows nothing of the tools, and they know nothing of it.
//
//	go run ./examples/progress-bar SESSION BATCH
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/messages"
)

const width = 30

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: progress-bar SESSION BATCH")
	}
	ctx := context.Background()
	agent, err := client.Connect(ctx, fleet.Options{URL: os.Getenv("NATS_URL")})
	if err != nil {
		log.Fatal(err)
	}
	defer agent.Close()
	done := map[int]float64{} // progress of each call, from 0 to 1
	for e, err := range agent.Follow(ctx, messages.SessionID(os.Args[1]), messages.BatchID(os.Args[2])) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Type {
		case messages.EventStart:
			done[e.Index] = 0
		case messages.EventProgress:
			done[e.Index] = e.Progress.Fraction
		case messages.EventEnd:
			done[e.Index] = 1
		case messages.EventReply:
			fmt.Printf("\r%s %s\n", bar(done), e.Status)
			return
		}
		fmt.Printf("\r%s ", bar(done))
	}
}

// bar draws the mean progress of all calls.
func bar(done map[int]float64) string {
	sum := 0.0
	for _, fraction := range done {
		sum += fraction
	}
	full := int(width * sum / float64(max(len(done), 1)))
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}
