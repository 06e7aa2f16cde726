package bus

import (
	"fmt"

	"github.com/nats-io/nats.go/micro"

	"github.com/toolfleet/toolfleet/messages"
)

// headroom is how many bytes of a message are kept free for everything other than the body:
// the headers, the subject, and the fields around the body.
const headroom = 64 << 10

// MaxBody returns the size in bytes of the largest body that fits into a message with its
// headers.
func (c *Conn) MaxBody() int { return c.MaxPayload() - headroom }

// Answer answers a request with one message. A lost answer is only logged, because the
// requester asks again.
//
// If the reply subject belongs to the fleet, Answer sends nothing. Otherwise a requester could
// make this process publish on such a subject with the rights of this process.
func (c *Conn) Answer(to Msg, h Header, body []byte) {
	if to.Reply == "" || c.names.Ours(to.Reply) {
		return
	}
	if err := c.Respond(to, h, body); err != nil {
		c.log.Debug("an answer was not sent; the requester has to ask again", "to", to.Subject, "err", err)
	}
}

// AnswerInChunks answers with a body of any size: in one message if it fits, otherwise in
// several. The header [messages.ChunkHeader] of each message has its number and the number of
// messages.
func (c *Conn) AnswerInChunks(to Msg, body []byte) {
	size := c.MaxBody()
	if len(body) <= size {
		c.Answer(to, nil, body)
		return
	}
	chunks := (len(body) + size - 1) / size
	for i := range chunks {
		part := body[i*size : min((i+1)*size, len(body))]
		c.Answer(to, Header{messages.ChunkHeader: {fmt.Sprintf("%d/%d", i+1, chunks)}}, part)
	}
}

// AnswerError answers with an error in the form of NATS micro services: a short text, a
// status code like those of HTTP, and a body with details.
func (c *Conn) AnswerError(to Msg, text, code string, body []byte) {
	c.Answer(to, Header{ServiceErrorHeader: {text}, ServiceErrorCodeHeader: {code}}, body)
}

// ServiceErrorHeader and ServiceErrorCodeHeader mark an answer as an error, in the form of
// NATS micro services.
const (
	ServiceErrorHeader     = micro.ErrorHeader
	ServiceErrorCodeHeader = micro.ErrorCodeHeader
)
