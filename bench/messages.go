package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// messageCounts prints how many messages of a batch pass the server, by subject and process.
// Processes reach the server through taps, so times mean nothing here. The pause stands for an
// agent that asks its model before it submits the next batch.
func messageCounts(w io.Writer, dir, product string) error {
	const pause = 20 * time.Millisecond
	patient := one
	patient.pause = pause
	both := field(product)
	for _, counted := range []struct {
		contestant
		loads []load
	}{
		{both[0], []load{patient, one, many}},
		{both[1], []load{patient}},
		{contestant{name: "Client.Run", start: startRun, binary: product}, []load{patient}},
	} {
		c := counted.contestant
		for _, l := range counted.loads {
			counts, err := countMessages(dir, c, l)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			between := "at once"
			if l.pause > 0 {
				between = fmt.Sprint(l.pause, " later")
			}
			fmt.Fprintf(w, "\n%s: messages per batch of 8 reads and 2 writes. Sessions: %d. The next batch of a session comes %s.\n\n", c.name, l.sessions, between)
			printCounts(w, counts)
		}
	}
	return nil
}

var roles = []string{"client", "coordinator", "worker"}

// countMessages returns the messages per batch, by class, then by role and direction.
func countMessages(dir string, c contestant, l load) (map[string]map[string]float64, error) {
	taps := map[string]*tap{}
	for _, role := range roles {
		taps[role] = &tap{}
	}
	f, err := relaxed.start(dir, c, taps)
	defer f.stop()
	if err != nil {
		return nil, err
	}
	if _, err := f.slice(l, time.Second); err != nil {
		return nil, err
	}
	before := map[string]map[string]int{}
	for role, t := range taps {
		before[role] = t.snapshot()
	}
	s, err := f.slice(l, 5*time.Second)
	if err != nil {
		return nil, err
	}
	counts := map[string]map[string]float64{}
	for role, t := range taps {
		for name, n := range t.snapshot() {
			direction, class, _ := strings.Cut(name, " ")
			if counts[class] == nil {
				counts[class] = map[string]float64{}
			}
			counts[class][role+" "+direction] = float64(n-before[role][name]) / float64(len(s.took))
		}
	}
	return counts, nil
}

// printCounts prints a table of messages per batch: one row for each class of messages, with
// what each role sends and receives. A class with fewer than 0.05 messages per batch gets no
// row.
func printCounts(w io.Writer, counts map[string]map[string]float64) {
	const rare = 0.05
	fmt.Fprintln(w, "| |", strings.Join(roles, " out | in | "), "out | in | all |")
	fmt.Fprintln(w, "|---|"+strings.Repeat("--:|", 2*len(roles)+1))
	total := map[string]float64{}
	print := func(name string, count map[string]float64) {
		fmt.Fprintf(w, "| %s |", name)
		sum := 0.0
		for _, role := range roles {
			for _, direction := range []string{"out", "in"} {
				n := count[role+" "+direction]
				sum += n
				if n < rare/10 {
					fmt.Fprint(w, " |")
				} else {
					fmt.Fprintf(w, " %.1f |", n)
				}
			}
		}
		fmt.Fprintf(w, " %.1f |\n", sum)
	}
	for _, class := range byTotal(counts) {
		sum := 0.0
		for direction, n := range counts[class] {
			total[direction] += n
			sum += n
		}
		if sum >= rare {
			print(class, counts[class])
		}
	}
	print("all", total)
}

// tap stands between the processes of a role and the server, and counts the messages.
type tap struct {
	addr     string
	listener net.Listener

	mu     sync.Mutex
	counts map[string]int // guarded by mu; by direction, a space, and class
	conns  []net.Conn     // guarded by mu
}

func (t *tap) listen(server string) (err error) {
	t.counts = map[string]int{}
	if t.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	t.addr = t.listener.Addr().String()
	go func() {
		for {
			near, err := t.listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				_ = near.Close()
				continue
			}
			t.mu.Lock()
			t.conns = append(t.conns, near, far)
			t.mu.Unlock()
			go t.pass("out", near, far)
			go t.pass("in", far, near)
		}
	}()
	return nil
}

func (t *tap) close() {
	_ = t.listener.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, conn := range t.conns {
		_ = conn.Close()
	}
}

func (t *tap) snapshot() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.counts)
}

// pass copies the protocol of NATS from one side to the other until one of them closes.
func (t *tap) pass(direction string, from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	in, out := bufio.NewReaderSize(from, 1<<16), bufio.NewWriterSize(to, 1<<16)
	for {
		m, err := readProtocol(in)
		if err != nil {
			return
		}
		if m.message {
			t.mu.Lock()
			t.counts[direction+" "+m.class()]++
			t.mu.Unlock()
		}
		_, _ = out.Write(m.line)
		_, _ = out.Write(m.body)
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// protocol is one line of the protocol, with the message that follows it, if any.
type protocol struct {
	line, body     []byte
	message        bool
	subject, reply string
}

func readProtocol(in *bufio.Reader) (p protocol, err error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return p, err
	}
	p.line = line
	fields := strings.Fields(string(line))
	if len(fields) == 0 {
		return p, nil
	}
	// The forms are PUB subject [reply] size, and MSG with the subscription's number before the
	// reply. With a leading H the size of the headers comes before the total size.
	var reply, sizes int
	switch fields[0] {
	case "PUB":
		reply, sizes = 2, 1
	case "HPUB":
		reply, sizes = 2, 2
	case "MSG":
		reply, sizes = 3, 1
	case "HMSG":
		reply, sizes = 3, 2
	default:
		return p, nil
	}
	p.message, p.subject = true, fields[1]
	if len(fields) > reply+sizes {
		p.reply = fields[reply]
	}
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return p, fmt.Errorf("a line of the protocol: %q", line)
	}
	p.body = make([]byte, size+len("\r\n"))
	_, err = io.ReadFull(in, p.body)
	return p, err
}

// class names the kind of a message: the first tokens of its subject or, for an answer, the class
// of its request.
func (p protocol) class() string {
	token := strings.Split(p.subject, ".")
	stream := func(i int) string { // the last word of its name
		if i >= len(token) {
			return ""
		}
		return token[i][strings.LastIndexByte(token[i], '_')+1:]
	}
	switch {
	case strings.HasPrefix(p.reply, "$JS.ACK."):
		return "delivery of " + p.verb()
	case strings.HasPrefix(p.subject, "$JS.ACK."):
		return "ack of " + stream(2) + " " + ackWord(p.body)
	case strings.HasPrefix(p.subject, "$JS.API.CONSUMER.MSG.NEXT."):
		return "pull of " + stream(5)
	case strings.HasPrefix(p.subject, "$JS.API.DIRECT.GET."):
		return "direct get of " + stream(4)
	case strings.HasPrefix(p.subject, "$JS.API.STREAM.MSG.GET."):
		return "leader get of " + stream(5)
	case strings.HasPrefix(p.subject, "$JS.API."):
		return strings.Join(token[:min(len(token), 5)], ".")
	case bytes.Contains(p.head(), []byte("Nats-Stream:")):
		return "answer to a direct get"
	case bytes.HasPrefix(p.body, []byte("NATS/1.0 404")) && bytes.Contains(p.head(), []byte("Message Not Found")):
		return "answer to a direct get: nothing"
	case bytes.HasPrefix(p.body, []byte("NATS/1.0 4")):
		return "end of a pull"
	case strings.HasPrefix(p.subject, "_INBOX.") && bytes.HasPrefix(p.body, []byte(`{"stream":`)):
		return "answer to a store"
	case strings.HasPrefix(p.subject, "_INBOX."):
		return "answer, other"
	}
	return p.verb()
}

// verb returns the first two tokens of a subject. The rest are ids.
func (p protocol) verb() string {
	token := strings.SplitN(p.subject, ".", 3)
	return strings.Join(token[:min(len(token), 2)], ".")
}

// head returns the headers of a message, if it has any.
func (p protocol) head() []byte {
	if !bytes.HasPrefix(p.body, []byte("NATS/1.0")) {
		return nil
	}
	head, _, _ := bytes.Cut(p.body, []byte("\r\n\r\n"))
	return head
}

// ackWord returns how a delivery was settled; no body is an acknowledgement.
func ackWord(body []byte) string {
	word, _, _ := strings.Cut(strings.TrimSpace(string(body)), " ")
	if slices.Contains([]string{"-NAK", "+WPI", "+TERM", "+NXT"}, word) {
		return word
	}
	return "+ACK"
}
