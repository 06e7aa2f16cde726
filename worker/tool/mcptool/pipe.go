package mcptool

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxMessage limits one message of a server, in bytes.
const maxMessage = 16 << 20

// pipe is the connection to a program: each line of the program's stdin and stdout is one
// message. Any other line was printed by mistake, by the program or a library that it uses.
// pipe does the work of the SDK's IOTransport with fewer goroutines, because each goroutine
// costs time in every call.
type pipe struct {
	stdin   *os.File
	stray   func(line []byte)
	tooLong func() // called for a line of more than maxMessage bytes; nothing is passed on after it

	writing  sync.Mutex
	incoming chan jsonrpc.Message
	closed   chan struct{}
	close    func() error

	// Only add uses the next two fields, and only one goroutine calls add.
	line   []byte
	broken bool
}

func newPipe(stdin *os.File) *pipe {
	p := &pipe{stdin: stdin, incoming: make(chan jsonrpc.Message), closed: make(chan struct{})}
	p.close = sync.OnceValue(func() error {
		close(p.closed)
		return p.stdin.Close()
	})
	return p
}

// add takes the next chunk of stdout. It returns when the messages in the chunk have been
// read.
func (p *pipe) add(chunk []byte) {
	for !p.broken && len(chunk) > 0 {
		part, rest, ended := bytes.Cut(chunk, []byte("\n"))
		if len(p.line)+len(part) > maxMessage {
			p.broken, p.line = true, nil
			p.tooLong()
			return
		}
		p.line = append(p.line, part...)
		chunk = rest
		if ended {
			p.pass()
		}
	}
}

func (p *pipe) pass() {
	line := bytes.TrimSpace(p.line)
	if len(line) > 0 {
		if message := decode(line); message == nil {
			p.stray(line)
		} else {
			select {
			case p.incoming <- message:
			case <-p.closed:
			}
		}
	}
	p.line = p.line[:0] // no message refers to the line any more
	if cap(p.line) > 1<<20 {
		p.line = nil
	}
}

// decode reads a message of JSON-RPC. It returns nil for any other text, and for a batch of
// messages.
func decode(line []byte) jsonrpc.Message {
	if line[0] != '{' {
		return nil
	}
	message, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		return nil
	}
	return message
}

// Connect implements [mcp.Transport].
func (p *pipe) Connect(context.Context) (mcp.Connection, error) { return p, nil }

// Read returns the next message.
func (p *pipe) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case message := <-p.incoming:
		return message, nil
	case <-p.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write sends a message. If the program does not read, Write blocks until the program is
// killed.
func (p *pipe) Write(_ context.Context, message jsonrpc.Message) error {
	line, err := jsonrpc.EncodeMessage(message)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err = p.stdin.Write(append(line, '\n'))
	return err
}

// Close closes the program's stdin. It may be called twice.
func (p *pipe) Close() error { return p.close() }

// SessionID returns "", because a program has one session.
func (p *pipe) SessionID() string { return "" }
