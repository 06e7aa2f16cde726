package bus

import (
	"fmt"

	"github.com/nats-io/nats.go/micro"

	"github.com/toolfleet/toolfleet/messages"
)

// headroom is how many bytes of a message are kept free for what is not the body: headers, the
// subject, the fields around the body.
const headroom = 64 << 10

// MaxBody is the largest body that fits into a message together with its headers, in bytes.
func (c *Conn) MaxBody() int { return c.MaxPayload() - headroom }

// Answer answers a request with one message. A lost answer is only logged, because the requester
// asks again. A request whose reply subject belongs to the fleet gets no answer: the requester
// could otherwise make this process publish there with this process's rights.
func (c *Conn) Answer(to Msg, h Header, body []byte) {
	if to.Reply == "" || c.names.Ours(to.Reply) {
		return
	}
	if err := c.Respond(to, h, body); err != nil {
		c.log.Debug("an answer was not sent; the requester has to ask again", "to", to.Subject, "err", err)
	}
}

// AnswerInChunks answers with a body of any size: in one message if it fits, otherwise in several,
// with their number and count in the header [messages.ChunkHeader].
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

// AnswerError answers with an error, as NATS micro services do: a short text, a status code like
// those of HTTP, and the body that explains it.
func (c *Conn) AnswerError(to Msg, text, code string, body []byte) {
	c.Answer(to, Header{ServiceErrorHeader: {text}, ServiceErrorCodeHeader: {code}}, body)
}

// ServiceErrorHeader and ServiceErrorCodeHeader mark an answer as an error, as NATS micro services
// do.
const (
	ServiceErrorHeader     = micro.ErrorHeader
	ServiceErrorCodeHeader = micro.ErrorCodeHeader
)
