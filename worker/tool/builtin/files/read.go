// Package files holds the builtins that work on one file: Read, Write and Edit.
package files

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/filetext"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// Limits of Read.
const (
	readLines    = 2000      // lines if the input has no limit
	maxReadLines = 100_000   // lines if the input has a limit
	maxReadBytes = 256 << 10 // bytes of text in one answer
	maxLine      = 2000      // bytes of a line that are shown
	maxImage     = 5 << 20   // bytes of an image, the smallest limit among the providers
	countBytes   = 64 << 20  // a larger file's lines after the answer are not counted
)

// ReadPromise returns the definition of Read.
func ReadPromise() schemas.Tool {
	return schemas.Tool{
		Name: "Read",
		Description: "Reads one file of the working folder. Text comes back with line numbers, like cat -n: the number, a tab, the line. " +
			"PNG, JPEG, GIF and WebP images up to 5 MB come back as images; of any other binary file only its size and type are told. " +
			"Without offset and limit it reads the first 2,000 lines and says how to read on. " +
			"An answer longer than 10,000 characters loses its middle, so read long files in ranges of about 200 lines. " +
			"Lines are cut after 2,000 bytes. It does not list folders (use Glob) and does not search (use Grep).",
		Kind: messages.KindRead,
		InputSchema: json.RawMessage(`{
					"type": "object",
					"properties": {
						"file_path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The file, relative to the working folder, or absolute inside it."},
						"offset": {"type": "integer", "minimum": 1, "maximum": 1000000000, "description": "The line to start at, from 1. Default 1."},
						"limit": {"type": "integer", "minimum": 1, "maximum": 100000, "description": "How many lines to read. Default 2000."}
					},
					"required": ["file_path"],
					"additionalProperties": false
				}`),
		MaxOutput: base.MaxOutput,
		Truncate:  schemas.TruncateMiddle,
	}
}

// NewRead returns the runner of Read in a folder.
func NewRead(root *rootdir.Root) tool.Runner { return reader{root} }

// reader is the Read tool.
type reader struct{ root *rootdir.Root }

type readArgs struct {
	FilePath string      `json:"file_path"`
	Offset   *base.Whole `json:"offset"`
	Limit    *base.Whole `json:"limit"`
}

// Check opens the file, looks at its first bytes, and closes it again.
func (t reader) Check(_ context.Context, call tool.Call) error {
	_, f, err := t.open(call)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = sniff(f)
	return err
}

// open opens the file that the call asks for.
func (t reader) open(call tool.Call) (readArgs, *os.File, error) {
	args, err := base.Arguments[readArgs](call)
	if err != nil {
		return args, nil, err
	}
	if args.Offset.Or(1) < 1 || args.Limit.Or(1) < 1 || args.Limit.Or(1) > maxReadLines {
		return args, nil, base.Refuse(messages.CodeInvalidArguments, "offset and limit count from 1, and limit is at most %s", base.Thousands(maxReadLines))
	}
	rel, err := t.root.Resolve(args.FilePath)
	if err != nil {
		return args, nil, err
	}
	f, _, err := t.root.OpenFile(args.FilePath, rel)
	return args, f, err
}

// Run returns the requested lines as text, or an image as a content block.
func (t reader) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	args, f, err := t.open(call)
	if err != nil {
		return tool.Output{}, err
	}
	defer f.Close()
	what, err := sniff(f)
	switch {
	case err != nil:
		return tool.Output{}, t.root.Failure(args.FilePath, err)
	case what.image:
		data, err := io.ReadAll(io.LimitReader(f, maxImage+1))
		if err == nil && len(data) > maxImage {
			err = tooLargeImage(int64(len(data)))
		}
		if err != nil {
			return tool.Output{}, t.root.Failure(args.FilePath, err)
		}
		return tool.Output{Content: []messages.Block{{Type: "image", Data: base64.StdEncoding.EncodeToString(data), MimeType: what.mime}}}, nil
	case what.binary:
		return tool.Text(fmt.Sprintf("[%s is a binary file: %s bytes, %s. Its content is not shown.]", rootdir.Quoted(args.FilePath), base.Thousands(what.size), what.mime)), nil
	case what.size == 0:
		return tool.Text(fmt.Sprintf("[%s is empty.]", rootdir.Quoted(args.FilePath))), nil
	}
	text, err := readRange(ctx, f, what.size, args.Offset.Or(1), args.Limit.Or(readLines))
	if err != nil {
		return tool.Output{}, t.root.Failure(args.FilePath, err)
	}
	return tool.Text(text), nil
}

// content is what the size and the first bytes of a file tell about it.
type content struct {
	size          int64
	mime          string
	image, binary bool
}

var images = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true}

// sniff returns the content of a file and leaves f at its start. If the file is an image
// over the limit, it returns an error.
func sniff(f *os.File) (content, error) {
	head := make([]byte, filetext.SniffBytes)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return content{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return content{}, err
	}
	what := content{size: max(info.Size(), int64(n)), mime: http.DetectContentType(head[:n]), binary: filetext.IsBinary(head[:n])}
	what.image = images[what.mime]
	if what.image && what.size > maxImage {
		return what, tooLargeImage(what.size)
	}
	return what, nil
}

func tooLargeImage(size int64) error {
	return base.Refuse(messages.CodeTooLarge, "the image has %s bytes or more (limit %s)", base.Thousands(size), base.Thousands(maxImage))
}

// readRange returns the lines from offset on, numbered. If there are more, it adds a note.
// It holds only the answer in memory, no matter how long the file or its lines are.
func readRange(ctx context.Context, f io.Reader, size int64, offset, limit int) (string, error) {
	in := bufio.NewReaderSize(contextReader{ctx, f}, 64<<10)
	if bom, _ := in.Peek(3); string(bom) == "\uFEFF" {
		in.Discard(3)
	}
	skipped, err := skipLines(in, offset-1)
	if err == nil {
		_, err = in.Peek(1)
	}
	if err == io.EOF {
		return fmt.Sprintf("[The file ends before line %s: it has %s.]", base.Thousands(offset), base.Plural(skipped, "line")), nil
	}
	var out strings.Builder
	next := offset
	for err == nil && next < offset+limit && out.Len() < maxReadBytes {
		var line []byte
		var cut int
		if line, cut, err = readLine(in, maxLine); err != nil {
			break
		}
		writeLine(&out, next, line, cut)
		next++
	}
	if err == nil {
		_, err = in.Peek(1)
	}
	switch {
	case err != nil && err != io.EOF:
		return "", err
	case err == nil:
		rest := ""
		if size <= countBytes {
			more, err := skipLines(in, math.MaxInt)
			if err != nil && err != io.EOF {
				return "", err
			}
			rest = fmt.Sprintf(" of %s", base.Thousands(next-1+more))
		}
		shown := "shown."
		if out.Len() > base.MaxOutput { // the model's copy is cut later, and loses its middle
			shown = "read, and not shown where it says truncated: ask for fewer lines with offset and limit."
		}
		fmt.Fprintf(&out, "[Lines %s to %s%s %s Read on with offset %d.]\n", base.Thousands(offset), base.Thousands(next-1), rest, shown, next)
	}
	return out.String(), nil
}

// skipLines skips up to n lines and returns how many it skipped. At the end of the file the
// error is io.EOF.
func skipLines(in *bufio.Reader, n int) (int, error) {
	for count := 0; count < n; count++ {
		some := false
		for {
			chunk, err := in.ReadSlice('\n')
			some = some || len(chunk) > 0
			if err == nil {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				if some {
					count++
				}
				return count, err
			}
		}
	}
	return n, nil
}

// readLine returns the next line without its end. It keeps at most keep bytes of the line;
// cut is how many it left out. It returns io.EOF if there is no line.
func readLine(in *bufio.Reader, keep int) (line []byte, cut int, err error) {
	length := 0
	for {
		chunk, err := in.ReadSlice('\n')
		if room := keep + utf8.UTFMax - len(line); room > 0 {
			line = append(line, chunk[:min(room, len(chunk))]...)
		}
		length += len(chunk)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (err != io.EOF || length == 0):
			return nil, 0, err
		}
		break
	}
	if length <= keep {
		return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), 0, nil
	}
	line = line[:filetext.RuneStart(line, keep)]
	return line, length - len(line), nil
}

// writeLine writes a line in the format of cat -n.
func writeLine(out *strings.Builder, number int, line []byte, cut int) {
	fmt.Fprintf(out, "%6d\t%s", number, bytes.ToValidUTF8(line, []byte("\uFFFD")))
	if cut > 0 {
		fmt.Fprintf(out, " [%s more bytes in this line]", base.Thousands(cut))
	}
	out.WriteByte('\n')
}

// contextReader fails when its context has ended.
type contextReader struct {
	ctx context.Context
	in  io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.in.Read(p)
}
