package sandbox

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// missingModule matches the message of Node about a package that it does not find or may not
// read. It also matches the file that asked for the package: on the same line or, for require,
// two lines below.
var missingModule = regexp.MustCompile(`Cannot find (?:package|module) '([^'\n]+)'(?: imported from (/[^\n]+)|\nRequire stack:\n- (/[^\n]+))`)

// modules adds the folders of packages that Node does not find although they exist. It adds
// the folder node_modules or, if that folder only links to the package, the package itself.
func (w *Wants) modules(p Policy, words string) {
	for _, m := range missingModule.FindAllStringSubmatch(words, -1) {
		for _, dir := range packageFolders(m[1], strings.TrimSpace(m[2]+m[3])) {
			real, err := filepath.EvalSymlinks(dir)
			if err != nil {
				continue
			}
			if p.reads(real) {
				break // Node has found the package, and misses something in it
			}
			folder := filepath.Dir(dir)
			if filepath.Base(folder) != modulesFolder { // a scope, such as @langchain
				folder = filepath.Dir(folder)
			}
			if home, err := filepath.EvalSymlinks(folder); err == nil && inside(real, home) {
				real = home
			}
			w.read(p, real)
			break
		}
	}
}

const modulesFolder = "node_modules"

// packageFolders returns where Node looks for a package that a file asks for: in each folder
// node_modules above the file. The name may also be a path into such a folder.
func packageFolders(name, by string) (all []string) {
	if before, rest, ok := cutLast(name, "/"+modulesFolder+"/"); ok && filepath.IsAbs(name) {
		return []string{filepath.Join(before, modulesFolder, packageName(rest))}
	}
	if filepath.IsAbs(name) || strings.HasPrefix(name, ".") || !filepath.IsAbs(by) {
		return nil
	}
	for dir := filepath.Dir(by); ; dir = filepath.Dir(dir) {
		if folder := filepath.Join(dir, modulesFolder, packageName(name)); exists(folder) {
			all = append(all, folder)
		}
		if dir == filepath.Dir(dir) {
			return all
		}
	}
}

// packageName returns the package of a module: the first part of the name, or the first two if
// it begins with a scope.
func packageName(module string) string {
	parts := strings.SplitN(module, "/", 3)
	if strings.HasPrefix(module, "@") && len(parts) > 1 {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

func cutLast(text, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(text, sep); i >= 0 {
		return text[:i], text[i+len(sep):], true
	}
	return text, "", false
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
