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

// maxMessage bounds one message of a server, in bytes.
const maxMessage = 16 << 20

// pipe is the connection to a program: one message on each line of its stdin and of its stdout. Any
// other line was printed by mistake, by the program or a library that it uses. It does what the
// SDK's IOTransport does with fewer goroutines, since each of them takes time in every call.
type pipe struct {
	stdin   *os.File
	stray   func(line []byte)
	tooLong func() // called for a line of more than maxMessage bytes; nothing is passed on after it

	writing  sync.Mutex
	incoming chan jsonrpc.Message
	closed   chan struct{}
	close    func() error

	// of add, which one goroutine calls
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

// add gets the next chunk of stdout. It waits until the messages in it are read.
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
	p.line = p.line[:0] // a message keeps nothing of it
	if cap(p.line) > 1<<20 {
		p.line = nil
	}
}

// decode reads a message of JSON-RPC. It returns nil for anything else, batches included.
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

// Write sends a message. A program that does not read holds it up until it is killed.
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

// SessionID returns "": a program has one session.
func (p *pipe) SessionID() string { return "" }
