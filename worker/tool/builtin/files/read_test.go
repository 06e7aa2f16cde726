package files

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

func TestRead(t *testing.T) {
	long := strings.Repeat("é", 1500) // 3,000 bytes long
	root := folder(t, map[string]string{
		"a.txt": "one\ntwo\nthree\n", "noeol": "one\ntwo", "crlf": "one\r\ntwo\r\n", "bom": "\uFEFFone\n", "empty": "", "blank": "\n\n",
		"latin1": "caf\xe9\n", "binary": "\x7fELF\x00\x01", "long": long + "\nnext\n", "exact": strings.Repeat("x", maxLine) + "\n", "lines": strings.Repeat("l\n", 2500),
	})
	for _, c := range []struct {
		args in
		want string
	}{
		{in{"file_path": "a.txt"}, "     1\tone\n     2\ttwo\n     3\tthree\n"},
		{in{"file_path": root.Dir() + "/a.txt"}, "     1\tone\n     2\ttwo\n     3\tthree\n"},
		{in{"file_path": "a.txt", "offset": 2}, "     2\ttwo\n     3\tthree\n"},
		{in{"file_path": "a.txt", "offset": 2, "limit": 1}, "     2\ttwo\n[Lines 2 to 2 of 3 shown. Read on with offset 3.]\n"},
		{in{"file_path": "a.txt", "offset": 3, "limit": 5}, "     3\tthree\n"},
		{in{"file_path": "a.txt", "offset": 4}, "[The file ends before line 4: it has 3 lines.]"},
		{in{"file_path": "noeol", "offset": 3}, "[The file ends before line 3: it has 2 lines.]"},
		{in{"file_path": "noeol"}, "     1\tone\n     2\ttwo\n"},
		{in{"file_path": "noeol", "limit": 1}, "     1\tone\n[Lines 1 to 1 of 2 shown. Read on with offset 2.]\n"},
		{in{"file_path": "crlf"}, "     1\tone\n     2\ttwo\n"},
		{in{"file_path": "bom"}, "     1\tone\n"},
		{in{"file_path": "empty"}, `["empty" is empty.]`},
		{in{"file_path": "blank"}, "     1\t\n     2\t\n"},
		{in{"file_path": "latin1"}, "     1\tcaf\uFFFD\n"},
		{in{"file_path": "binary"}, `["binary" is a binary file: 6 bytes, application/octet-stream. Its content is not shown.]`},
		{in{"file_path": "long"}, "     1\t" + strings.Repeat("é", 1000) + " [1,001 more bytes in this line]\n     2\tnext\n"},
	} {
		if got := text(t, root, "Read", c.args); got != c.want {
			t.Errorf("%v: got %q, want %q", c.args, got, c.want)
		}
	}
	got := text(t, root, "Read", in{"file_path": "lines"})
	if !strings.HasSuffix(got, "  2000\tl\n[Lines 1 to 2,000 of 2,500 read, and not shown where it says truncated: ask for fewer lines with offset and limit. Read on with offset 2001.]\n") {
		t.Errorf("got an end of %q", got[len(got)-200:])
	}
	refused(t, root, "Read", in{"file_path": "gone"}, base.CodeNotFound)
}

func TestReadImages(t *testing.T) {
	png := "\x89PNG\r\n\x1a\n" + strings.Repeat("p", 100)
	root := folder(t, map[string]string{
		"a.png": png, "b": "\xff\xd8\xff\xe0jpeg", "c.gif": "GIF89a...", "d": "RIFF\x00\x00\x00\x00WEBPVP8 ", "big.png": png + strings.Repeat("\x00", maxImage), "named.png": "only text\n",
	})
	for name, mime := range map[string]string{"a.png": "image/png", "b": "image/jpeg", "c.gif": "image/gif", "d": "image/webp"} {
		out, err := run(t, root, "Read", in{"file_path": name})
		if err != nil || len(out.Content) != 1 || out.Content[0].MimeType != mime || out.Content[0].Type != "image" {
			t.Errorf("%s: got %+v, %v", name, out, err)
			continue
		}
		if data, err := base64.StdEncoding.DecodeString(out.Content[0].Data); err != nil || string(data) != get(t, root, name) {
			t.Errorf("%s: the data is not the file's", name)
		}
	}
	refused(t, root, "Read", in{"file_path": "big.png"}, messages.CodeTooLarge)
	if got, want := text(t, root, "Read", in{"file_path": "named.png"}), "     1\tonly text\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Read gets a line longer than its buffer, in a file longer than an answer may be: it keeps
// only the answer in memory.
func TestReadRangeOfHugeInput(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector, which sees nothing in one goroutine")
	}
	huge := &repeating{line: strings.Repeat("y", 999) + "\n", times: 200_000} // 200 MB
	got, err := readRange(t.Context(), huge, 200_000_000, 150_001, 2)
	want := "150001\t" + strings.Repeat("y", 999) + "\n"
	if err != nil || !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\n[Lines 150,001 to 150,002 shown. Read on with offset 150003.]\n") {
		t.Errorf("got %.50q ... %q, %v", got, got[max(0, len(got)-100):], err)
	}
	one := &repeating{line: "z", times: 50_000_000}
	got, err = readRange(t.Context(), one, 50_000_000, 1, 10)
	if want := "     1\t" + strings.Repeat("z", maxLine) + " [49,998,000 more bytes in this line]\n"; err != nil || got != want {
		t.Errorf("got %d bytes, %v: %q", len(got), err, got[max(0, len(got)-100):])
	}
	wide := &repeating{line: strings.Repeat("w", 1999) + "\n", times: 1000}
	got, err = readRange(t.Context(), wide, 2_000_000, 1, 1000)
	if err != nil || len(got) > maxReadBytes+3000 || !strings.Contains(got, " of 1,000 read, and not shown where it says truncated: ") {
		t.Errorf("got %d bytes, %v: %q", len(got), err, got[max(0, len(got)-100):])
	}
}

// repeating is a reader of one line, repeated, that does not hold the whole text.
type repeating struct {
	line  string
	times int
	rest  string
}

func (r *repeating) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if r.rest == "" {
			if r.times == 0 {
				return n, eofIfNone(n)
			}
			r.rest = r.line
			r.times--
		}
		c := copy(p[n:], r.rest)
		r.rest = r.rest[c:]
		n += c
	}
	return n, nil
}

func eofIfNone(n int) error {
	if n > 0 {
		return nil
	}
	_, err := strings.NewReader("").ReadByte()
	return err
}

func TestReadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, err := readRange(ctx, strings.NewReader("a\n"), 2, 1, 1); !errors.Is(err, stop) {
		t.Errorf("got %v, want the cause", err)
	}
}

// readRange agrees with slowRange, which splits the whole text.
func TestReadRangeAgreesWithSplit(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteString([]string{"\n", "a", "é\n", "word\r\n", strings.Repeat("x", random.IntN(5000)), "\r"}[random.IntN(6)])
		}
		text, offset, limit := b.String(), 1+random.IntN(6), 1+random.IntN(6)
		got, err := readRange(t.Context(), iotest.OneByteReader(strings.NewReader(text)), int64(len(text)), offset, limit)
		if want := slowRange(text, offset, limit); err != nil || got != want {
			t.Fatalf("%.80q offset %d limit %d: got %.300q, %v, want %.300q", text, offset, limit, got, err, want)
		}
	}
}

func slowRange(text string, offset, limit int) string {
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if offset > len(lines) {
		return fmt.Sprintf("[The file ends before line %d: it has %s.]", offset, base.Plural(len(lines), "line"))
	}
	out := ""
	end := min(len(lines), offset-1+limit)
	for i := offset - 1; i < end; i++ {
		line := lines[i]
		if len(line) > maxLine {
			n := maxLine
			for n > 0 && line[n]&0xC0 == 0x80 {
				n--
			}
			out += fmt.Sprintf("%6d\t%s [%s more bytes in this line]\n", i+1, line[:n], base.Thousands(len(line)-n))
			continue
		}
		out += fmt.Sprintf("%6d\t%s\n", i+1, strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"))
	}
	if end < len(lines) {
		out += fmt.Sprintf("[Lines %d to %d of %d shown. Read on with offset %d.]\n", offset, end, len(lines), end+1)
	}
	return out
}

func FuzzReadRange(f *testing.F) {
	f.Add([]byte("a\nb\r\n\xff"), 1, 2)
	f.Fuzz(func(t *testing.T, data []byte, offset, limit int) {
		if offset < 1 || limit < 1 || limit > maxReadLines {
			return
		}
		if _, err := readRange(t.Context(), bytes.NewReader(data), int64(len(data)), offset, limit); err != nil {
			t.Error(err)
		}
		for in := bufio.NewReaderSize(bytes.NewReader(data), 16); ; {
			line, cut, err := readLine(in, 20)
			if err != nil {
				break
			}
			if len(line) > 20 || cut < 0 {
				t.Errorf("line %q cut %d", line, cut)
			}
		}
	})
}
