// Command tool-go serves one tool written in Go: a whole program.
package main

import (
	"context"
	"strings"

	"github.com/toolfleet/toolfleet/worker"
)

type In struct {
	Text string `json:"text" jsonschema:"the text to shout"`
}

func main() {
	worker.Main(worker.New("shout", "Says a text louder.", worker.Compute,
		func(_ context.Context, in In) (string, error) { return strings.ToUpper(in.Text) + "!", nil }))
}
