package dialect

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

// Texts for the model if a tool gave no text.
const (
	NoOutput = "(no output)"
	NoReason = "The tool failed without saying why."
)

// Answer is the outcome of one call in a form that every dialect can write.
type Answer struct {
	Call messages.ToolCall
	// Outcome is never a lost outcome. Its Output has no white space and no escapes that JSON
	// does not need.
	Outcome messages.Outcome
	Failed  bool
	// Coded says that the text is toolfleet's JSON error body. The body itself shows that it
	// is an error.
	Coded bool
	// Parts has the outcome as text and images. It has at least one part. In a failure, at
	// least one text is not blank.
	Parts []Part
}

// Part is a text, or an image if Image is set.
type Part struct {
	Text  string
	Image *Image
}

// Image is an image that providers accept: png, jpeg, gif or webp, in valid base64.
type Image struct {
	Format string // png, jpeg, gif, webp
	Data   string // base64
}

// MimeType returns image/<format>.
func (i Image) MimeType() string { return "image/" + i.Format }

// Note returns the text that replaces the image if a dialect cannot show it.
func (i Image) Note() string { return "[image omitted: " + i.MimeType() + "]" }

// DataURL returns the image as a data URL.
func (i Image) DataURL() string { return "data:" + i.MimeType() + ";base64," + i.Data }

// Answers pairs calls with their outcomes. outcomes must have one outcome for each call, in
// the same order. A lost outcome becomes an error that says that it is lost, because every
// call must be answered.
func Answers(calls []messages.ToolCall, outcomes []messages.Outcome) ([]Answer, error) {
	if len(calls) != len(outcomes) {
		return nil, fmt.Errorf("encode answers: %d outcomes for %d calls", len(outcomes), len(calls))
	}
	answers := make([]Answer, len(calls))
	for i, call := range calls {
		answers[i] = answer(call, outcomes[i].OrLost())
	}
	return answers, nil
}

func answer(call messages.ToolCall, o messages.Outcome) Answer {
	if o.Output != nil && !json.Valid(o.Output) {
		o = messages.Failed(messages.CodeInternal, "The output of this call was not valid JSON and is left out.")
	}
	a := Answer{Call: call, Outcome: o, Failed: o.Failure()}
	switch {
	case o.Err != nil:
		a.Coded = !o.Err.Plain()
		a.Parts = []Part{{Text: o.Err.ErrorText()}}
	case o.Content != nil:
		for _, b := range o.Content {
			if p := part(b); p.Image != nil || p.Text != "" {
				a.Parts = append(a.Parts, p)
			}
		}
	default:
		a.Outcome.Output = Value(o.Output)
		a.Parts = []Part{{Text: outputText(a.Outcome.Output)}}
	}
	if a.Failed && strings.TrimSpace(a.Text()) == "" {
		a.Outcome = messages.Outcome{Content: []messages.Block{{Type: "text", Text: NoReason}}, IsError: true}
		a.Parts = []Part{{Text: NoReason}}
	}
	if a.Parts == nil {
		a.Parts = []Part{{}}
	}
	return a
}

// outputText returns the text of an output for the model: the text of a string, or the JSON
// of any other value.
func outputText(value json.RawMessage) string {
	if value[0] == '"' {
		return Unquote(value)
	}
	return string(value)
}

// Text returns the whole answer as one text. Each part begins a new line. A note replaces each
// image.
func (a Answer) Text() string {
	texts := make([]string, len(a.Parts))
	for i, p := range a.Parts {
		texts[i] = p.Text
		if p.Image != nil {
			texts[i] = p.Image.Note()
		}
	}
	return strings.Join(texts, "\n")
}

// MarkedText is like [Answer.Text], but it marks a failure in the text. It is for dialects
// without a flag for failures.
func (a Answer) MarkedText() string { return a.mark() + a.Text() }

func (a Answer) mark() string {
	if a.Failed && !a.Coded {
		return "Error: "
	}
	return ""
}

// MarkedParts returns the parts, and marks a failure in the first text.
func (a Answer) MarkedParts() []Part {
	mark := a.mark()
	if mark == "" {
		return a.Parts
	}
	if a.Parts[0].Image != nil {
		return append([]Part{{Text: strings.TrimSpace(mark)}}, a.Parts...)
	}
	marked := append([]Part(nil), a.Parts...)
	marked[0].Text = mark + marked[0].Text
	return marked
}

// HasImage reports whether one of the parts is an image.
func (a Answer) HasImage() bool {
	for _, p := range a.Parts {
		if p.Image != nil {
			return true
		}
	}
	return false
}

// Visible returns the parts for a dialect that refuses blank text. It leaves out blank parts.
// If no part is left, it returns NoOutput. If images is false, it replaces each image by a
// note.
func (a Answer) Visible(images bool) []Part {
	var parts []Part
	for _, p := range a.Parts {
		if p.Image != nil && !images {
			p = Part{Text: p.Image.Note()}
		}
		if p.Image != nil || strings.TrimSpace(p.Text) != "" {
			parts = append(parts, p)
		}
	}
	if parts == nil {
		parts = []Part{{Text: NoOutput}}
	}
	return parts
}

func part(b messages.Block) Part {
	switch {
	case b.Type == "image":
		return media("image", b.MimeType, b.Data)
	case b.Type == "audio":
		return Part{Text: note("audio", b.MimeType)}
	case b.Type == "resource_link":
		return Part{Text: "[" + strings.TrimSpace("resource "+b.Name+" "+b.URI) + "]"}
	case b.Resource != nil && b.Resource.Blob != "":
		return media("resource", b.Resource.MimeType, b.Resource.Blob)
	case b.Resource != nil:
		return Part{Text: b.Resource.Text}
	case b.Type == "text" || b.Text != "":
		return Part{Text: b.Text}
	}
	return Part{Text: note("content", b.Type)}
}

// media returns an image that every provider with images accepts, or a note that an image was
// left out. A provider refuses a whole message if an image has another type than it claims. So
// one bad image would cost the answers of all calls.
func media(kind, mimeType, data string) Part {
	format, _ := strings.CutPrefix(strings.ToLower(mimeType), "image/")
	switch format {
	case "jpg":
		format = "jpeg"
	case "png", "jpeg", "gif", "webp":
	default:
		return Part{Text: note(kind, mimeType)}
	}
	data = strings.NewReplacer("\r", "", "\n", "").Replace(data)
	size, err := io.Copy(io.Discard, base64.NewDecoder(base64.StdEncoding, strings.NewReader(data)))
	if err != nil || size == 0 {
		return Part{Text: note(kind, mimeType+", its data is not valid base64")}
	}
	return Part{Image: &Image{Format: format, Data: data}}
}

func note(kind, what string) string {
	if what == "" {
		what = "of unknown type"
	}
	return fmt.Sprintf("[%s omitted: %.100s]", kind, what)
}

// Attach is for a dialect in which images are apart from the text. It returns the text, with a
// note in place of each image, and those images for which the function takes returns true.
func (a Answer) Attach(takes func(Image) bool) (text string, images []Image) {
	texts := make([]string, len(a.Parts))
	for i, p := range a.Parts {
		texts[i] = p.Text
		if p.Image == nil {
			continue
		}
		if texts[i] = p.Image.Note(); takes(*p.Image) {
			texts[i] = "[image attached: " + p.Image.MimeType() + "]"
			images = append(images, *p.Image)
		}
	}
	return strings.Join(texts, "\n"), images
}
