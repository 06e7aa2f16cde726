package mcptool

import (
	"bytes"
	"encoding/json"
	"io"
)

// maxMessage bounds one message of a server, in bytes.
const maxMessage = 16 << 20

// stdout passes the messages in a server's output on to a reader. Any other line was printed by
// mistake, by the server or a library that it uses.
type stdout struct {
	messages io.Writer
	stray    func(line []byte)
	tooLong  func() // called for a line of more than maxMessage bytes; nothing is passed on after it

	line   []byte
	broken bool
}

// add gets the next chunk.
func (o *stdout) add(chunk []byte) {
	for !o.broken && len(chunk) > 0 {
		part, rest, ended := bytes.Cut(chunk, []byte("\n"))
		if len(o.line)+len(part) > maxMessage {
			o.broken, o.line = true, nil
			o.tooLong()
			return
		}
		o.line = append(o.line, part...)
		chunk = rest
		if ended {
			o.pass()
		}
	}
}

func (o *stdout) pass() {
	line := bytes.TrimSpace(o.line)
	switch {
	case len(line) == 0:
	case isMessage(line):
		_, _ = o.messages.Write(append(line, '\n')) // an error: the session is closed
	default:
		o.stray(line)
	}
	o.line = o.line[:0]
	if cap(o.line) > 1<<20 {
		o.line = nil
	}
}

// isMessage reports whether a line is a message of JSON-RPC.
func isMessage(line []byte) bool {
	var version struct {
		JSONRPC string `json:"jsonrpc"`
	}
	return line[0] == '{' && json.Unmarshal(line, &version) == nil && version.JSONRPC == "2.0"
}
