// Package status reads headers that a NATS server sets: numbers, and the status that it sends
// in place of a message.
package status

import (
	"strconv"

	"github.com/nats-io/nats.go"
)

// Statuses that the server sends in place of a message.
const (
	Heartbeat    = 100
	End          = 204
	NotFound     = 404
	Expired      = 408
	TooMany      = 413
	NoResponders = 503
)

// Of returns the status in a message of the server. It returns 0 if the message is from
// another client.
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

// Description returns the text that the server sends with a status.
func Description(m *nats.Msg) string { return m.Header.Get("Description") }

// Number returns the value of a header, or 0 if the header is missing or not a number.
func Number(m *nats.Msg, header string) uint64 {
	n, err := strconv.ParseUint(m.Header.Get(header), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
