package files

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// maxWrite limits the size of files that Write and Edit write, in bytes.
const maxWrite = 10 << 20

// WritePromise returns the definition of Write.
func WritePromise() schemas.Tool {
	return schemas.Tool{
		Name: "Write",
		Description: "Writes one text file of the working folder, whole: a new file, with the folders it needs, or the complete replacement of an existing one, whose permissions stay. " +
			"The file has the old content or the new one at every moment. Content up to 10 MB. " +
			"It does not append and does not change parts of a file (use Edit for that).",
		Kind:    messages.KindWrite,
		OnCrash: messages.OnCrashIdempotent,
		InputSchema: json.RawMessage(`{
					"type": "object",
					"properties": {
						"file_path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "The file, relative to the working folder, or absolute inside it."},
						"content": {"type": "string", "maxLength": 10485760, "description": "The whole content, written as it is: no line end is added."}
					},
					"required": ["file_path", "content"],
					"additionalProperties": false
				}`),
		MaxOutput: base.MaxOutput,
		Truncate:  schemas.TruncateHead,
	}
}

// NewWrite returns the runner of Write in a folder.
func NewWrite(root *rootdir.Root) tool.Runner { return writer{root} }

// writer is the Write tool.
type writer struct{ root *rootdir.Root }

type writeArgs struct {
	FilePath string  `json:"file_path"`
	Content  *string `json:"content"`
}

// Check refuses a path that cannot be written to, and content that is too long.
func (t writer) Check(_ context.Context, call tool.Call) error {
	args, rel, err := t.arguments(call)
	if err != nil {
		return err
	}
	return t.root.Writable(args.FilePath, rel)
}

func (t writer) arguments(call tool.Call) (writeArgs, string, error) {
	args, err := base.Arguments[writeArgs](call)
	if err != nil {
		return args, "", err
	}
	if args.Content == nil {
		return args, "", base.Refuse(messages.CodeInvalidArguments, "content is missing; an empty file needs an empty string")
	}
	if len(*args.Content) > maxWrite {
		return args, "", tooLargeText(len(*args.Content))
	}
	rel, err := t.root.Resolve(args.FilePath)
	return args, rel, err
}

func tooLargeText(size int) error {
	return base.Refuse(messages.CodeTooLarge, "the file would have %s bytes (limit %s)", base.Thousands(size), base.Thousands(maxWrite))
}

// Run writes the file.
func (t writer) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	args, rel, err := t.arguments(call)
	if err != nil {
		return tool.Output{}, err
	}
	t.root.Lock()
	defer t.root.Unlock()
	if err := context.Cause(ctx); err != nil {
		return tool.Output{}, err
	}
	if err := t.root.Writable(args.FilePath, rel); err != nil {
		return tool.Output{}, err
	}
	created, err := t.root.Replace(args.FilePath, rel, []byte(*args.Content), nil)
	if err != nil {
		return tool.Output{}, err
	}
	done := "Overwrote"
	if created {
		done = "Created"
	}
	return tool.Text(fmt.Sprintf("%s %s (%s).", done, rel, base.Plural(len(*args.Content), "byte"))), nil
}
