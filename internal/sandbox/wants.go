package sandbox

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Wants holds keys for the sandbox of an entry of the tools file. They would allow what a
// program was refused, as far as the program's output and file show. A person has to judge the
// keys, because a program may print anything.
type Wants struct {
	Read, State []string
	Network     bool // network: host
}

// String returns the keys as a tools file has them, or "" if there are none.
func (w Wants) String() string {
	var keys []string
	for _, list := range []struct {
		key   string
		paths []string
	}{{"read", w.Read}, {"state", w.State}} {
		if len(list.paths) > 0 {
			keys = append(keys, list.key+": ["+strings.Join(quoted(list.paths), ", ")+"]")
		}
	}
	if w.Network {
		keys = append(keys, "network: host")
	}
	if len(keys) == 0 {
		return ""
	}
	return "sandbox: {" + strings.Join(keys, ", ") + "}"
}

// quoted quotes paths for a list in YAML.
func quoted(paths []string) (all []string) {
	for _, p := range paths {
		if strings.ContainsFunc(p, func(c rune) bool {
			return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("/._-+@", c)
		}) {
			p = strconv.Quote(p)
		}
		all = append(all, p)
	}
	return all
}

var (
	pathInText = regexp.MustCompile(`(?:^|[\s'"` + "`" + `(=:])(/[^\s'"` + "`" + `(),;:]+)`)
	// asWriter matches output that shows that a program wanted to change something.
	asWriter = regexp.MustCompile(`(?i)mkdir|create|touch|unlink|remove|rename|write|writing|read-only|erofs`)
	// programFolders are folder names of an installation: its programs and libraries.
	programFolders = []string{"bin", "sbin", "lib", "lib64", "libexec", "shims"}
)

// maxWants limits how many paths are named.
const maxWants = 4

// Wants finds out which sandbox keys a program needs that ended with this output.
func (b *Box) Wants(program, words string) (w Wants) {
	if b == nil {
		return w
	}
	p := b.Policy
	for _, name := range files(program) {
		if !p.reads(name) {
			w.read(p, name)
		}
	}
	for line := range strings.Lines(words) {
		at := slices.IndexFunc(refusals, func(r string) bool { return strings.Contains(line, r) })
		switch {
		case at < 0:
			continue
		case at >= firstOfNetwork:
			w.Network = w.Network || b.Plan.Way == NoWay && p.Network != HostNetwork
			continue
		}
		// Programs often print paths of their own first. The last path of a line is therefore
		// the refused path.
		found := pathInText.FindAllStringSubmatch(line, -1)
		for _, path := range slices.Backward(found) {
			name := filepath.Clean(strings.TrimRight(path[1], ".!?"))
			if p.hides(name) || p.changes(name) {
				continue
			}
			// Reading a missing file gives another error. If a refused path is missing, the
			// program therefore wanted to create it.
			if _, err := os.Lstat(name); p.reads(name) || asWriter.MatchString(line) || os.IsNotExist(err) {
				w.change(p, name, strings.Contains(strings.ToLower(line), "mkdir"))
			} else {
				w.read(p, name)
			}
			break
		}
	}
	w.modules(p, words)
	return w
}

func (p Policy) reads(name string) bool { return insideAny(name, p.Read) || p.changes(name) }

func (p Policy) changes(name string) bool {
	return insideAny(name, p.Write) || p.Temp != "" && inside(name, p.Temp)
}

// hides reports whether a path must not be offered, whatever the program prints.
func (p Policy) hides(name string) bool {
	return insideAny(name, p.Hide) || insideAny(name, []string{"/proc", "/sys", "/dev"})
}

// read adds a path to the wanted reads. If the path is in an installation, it adds the folder
// of the installation.
func (w *Wants) read(p Policy, name string) {
	for dir := filepath.Dir(name); dir != "/"; dir = filepath.Dir(dir) {
		if above := filepath.Dir(dir); slices.Contains(programFolders, filepath.Base(dir)) && above != "/" && above != "/usr" && above != os.Getenv("HOME") {
			name = above
			break
		}
	}
	if !p.hides(name) && len(w.Read) < maxWants && !insideAny(name, w.Read) {
		w.Read = append(w.Read, name)
	}
}

// change adds a path to the wanted changes if it is a folder, or will become one. A missing
// path that begins with a dot counts as a folder, because programs name their folders so.
// Otherwise change adds the folder that holds the path.
func (w *Wants) change(p Policy, name string, made bool) {
	info, err := os.Stat(name)
	if err == nil && !info.IsDir() || err != nil && !made && !strings.HasPrefix(filepath.Base(name), ".") {
		name = filepath.Dir(name)
	}
	if !p.hides(name) && len(w.State) < maxWants && !insideAny(name, w.State) {
		w.State = append(w.State, name)
	}
}

// files returns the file of a program and, for a script, the file of its interpreter, with
// links resolved.
func files(program string) (names []string) {
	if !filepath.IsAbs(program) {
		return nil
	}
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return nil
	}
	names = []string{real}
	file, err := os.Open(real)
	if err != nil {
		return names
	}
	defer file.Close()
	start := make([]byte, 256)
	n, _ := file.Read(start)
	line, _, _ := bytes.Cut(start[:n], []byte("\n"))
	if script, ok := bytes.CutPrefix(line, []byte("#!")); ok {
		if words := strings.Fields(string(script)); len(words) > 0 {
			if real, err := filepath.EvalSymlinks(words[0]); err == nil {
				names = append(names, real)
			}
		}
	}
	return names
}
