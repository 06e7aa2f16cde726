package mcptool

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// noteRequest shows c a request to a service. For a program, [tap] does the same.
func (c *calls) noteRequest(r *http.Request) {
	if r.Method != http.MethodPost || r.GetBody == nil {
		return
	}
	body, err := r.GetBody()
	if err != nil {
		return
	}
	defer body.Close()
	raw, err := io.ReadAll(body)
	if err != nil || len(raw) == 0 {
		return
	}
	if request, ok := decode(raw).(*jsonrpc.Request); ok {
		c.sent(request)
	}
}

// noteAnswers lets c see the answers of a service: one message as JSON, or a stream of events
// with messages.
func (c *calls) noteAnswers(r *http.Response) {
	kind := r.Header.Get("Content-Type")
	switch {
	case strings.HasPrefix(kind, "application/json"):
		r.Body = &answers{ReadCloser: r.Body, calls: c}
	case strings.HasPrefix(kind, "text/event-stream"):
		r.Body = &answers{ReadCloser: r.Body, calls: c, events: true}
	}
}

// answers is the body of a response. While the SDK reads the body, answers shows its messages
// to calls. The SDK gets the end of a message only after calls have seen that message.
type answers struct {
	io.ReadCloser
	calls  *calls
	events bool // the body is a stream of events; false: one message

	line, message []byte
	broken        bool // a line or message was longer than maxMessage; later ones are not shown
}

// Read reads from the body and shows calls the messages in it.
func (a *answers) Read(buf []byte) (int, error) {
	n, err := a.ReadCloser.Read(buf)
	a.add(buf[:n])
	if err != nil {
		if a.events {
			a.endLine()
		}
		a.endMessage()
	}
	return n, err
}

func (a *answers) add(chunk []byte) {
	if !a.events {
		a.message = a.grow(a.message, chunk)
		return
	}
	for len(chunk) > 0 && !a.broken {
		part, rest, ended := bytes.Cut(chunk, []byte("\n"))
		a.line = a.grow(a.line, part)
		chunk = rest
		if ended {
			a.endLine()
		}
	}
}

// grow appends to a text. If the text would become longer than maxMessage, grow sets broken
// and returns nil.
func (a *answers) grow(text, more []byte) []byte {
	if a.broken || len(text)+len(more) > maxMessage {
		a.broken, a.line, a.message = true, nil, nil
		return nil
	}
	return append(text, more...)
}

// endLine handles the end of a line of an event. The line is a part of the message or, if it
// is empty, the end of the message.
func (a *answers) endLine() {
	line := bytes.TrimSuffix(a.line, []byte("\r"))
	if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		if len(a.message) > 0 {
			a.message = append(a.message, '\n')
		}
		a.message = a.grow(a.message, bytes.TrimPrefix(data, []byte(" ")))
	} else if len(line) == 0 {
		a.endMessage()
	}
	a.line = a.line[:0]
}

func (a *answers) endMessage() {
	text := bytes.TrimSpace(a.message)
	if len(text) > 0 {
		if response, ok := decode(text).(*jsonrpc.Response); ok {
			a.calls.answered(response)
		}
	}
	a.message = nil
}
