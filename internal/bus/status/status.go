// Package status reads the headers that a NATS server sets: the status that it answers with instead
// of a message, and numbers.
package status

import (
	"strconv"

	"github.com/nats-io/nats.go"
)

// Statuses that the server answers with instead of a message.
const (
	Heartbeat    = 100
	End          = 204
	NotFound     = 404
	Expired      = 408
	TooMany      = 413
	NoResponders = 503
)

// Of returns the server's status in m, or 0 for a message that another client sent.
func Of(m *nats.Msg) int {
	if len(m.Data) > 0 {
		return 0
	}
	code, err := strconv.Atoi(m.Header.Get("Status"))
	if err != nil {
		return 0
	}
	return code
}

// Description returns the server's text beside a status.
func Description(m *nats.Msg) string { return m.Header.Get("Description") }

// Number returns the value of a header, or 0 if the header is missing or not a number.
func Number(m *nats.Msg, header string) uint64 {
	n, err := strconv.ParseUint(m.Header.Get(header), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
