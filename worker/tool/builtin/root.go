package builtin

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	maxPath  = 4096 // bytes of a path, as in the schemas
	maxDepth = 255  // folders of a path: each access walks all of them
	maxLinks = 16   // symbolic links followed to the file that a write replaces
	shown    = 200  // characters of a path that an error repeats
)

// Root is the working folder of a worker's file tools. There is one per worker, for any number of
// goroutines.
type Root struct {
	dir string // canonical and absolute
	// given is the absolute path as the operator wrote it: links on the way to the folder are not
	// resolved.
	given string
	fs    *os.Root
	// mu makes a change of a file atomic among this worker's sessions: an edit is a read and a
	// write.
	mu sync.Mutex
}

// OpenRoot opens the folder that the file tools are confined to.
func OpenRoot(dir string) (*Root, error) {
	given, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	canonical, err := filepath.EvalSymlinks(given)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	root, err := os.OpenRoot(canonical)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	return &Root{dir: canonical, given: given, fs: root}, nil
}

// Dir returns the canonical absolute path of the folder.
func (r *Root) Dir() string { return r.dir }

// Close closes the folder. Runs that are under way fail.
func (r *Root) Close() error { return r.fs.Close() }

// Resolve returns the canonical form of a path that a model wrote, relative to the folder and with
// slashes: "." for the folder itself. It checks the text only. os.Root checks links at each access.
func (r *Root) Resolve(name string) (string, error) {
	switch {
	case name == "":
		return "", refuse(CodeInvalidPath, "the path is empty")
	case len(name) > maxPath:
		return "", refuse(CodeInvalidPath, "the path %s is %s bytes long (limit %s)", quoted(name), thousands(len(name)), thousands(maxPath))
	case strings.Count(name, "/") > maxDepth:
		return "", refuse(CodeInvalidPath, "the path %s has more than %d folders", quoted(name), maxDepth)
	case strings.ContainsRune(name, 0):
		return "", refuse(CodeInvalidPath, "the path %s has a NUL character in it", quoted(name))
	case strings.HasPrefix(name, "~/") || disguised(name):
		return "", r.outside(name)
	}
	rel := name
	if filepath.IsAbs(name) {
		var ok bool
		if rel, ok = below(r.dir, name); !ok {
			if rel, ok = below(r.given, name); !ok {
				return "", r.outside(name)
			}
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(rel)) {
		return "", r.outside(name)
	}
	return path.Clean(filepath.ToSlash(rel)), nil
}

// below returns the rest of an absolute path under dir. Whole components count: /srv/app2 is not in
// /srv/app.
func below(dir, name string) (string, bool) {
	rel, err := filepath.Rel(dir, name)
	return rel, err == nil && filepath.IsLocal(rel)
}

// disguised reports whether a path hides a ".." behind backslashes or percent signs. As a file name
// it is harmless here, but it is hardly ever meant as one, and a later reader of the path may
// decode it.
func disguised(name string) bool {
	plain := name
	for range 3 {
		decoded, err := url.PathUnescape(plain)
		if err != nil || decoded == plain {
			break
		}
		plain = decoded
	}
	plain = strings.ReplaceAll(plain, `\`, "/")
	return plain != name && hasDotDot(plain) && !hasDotDot(name)
}

func hasDotDot(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

func (r *Root) outside(name string) error {
	return refuse(CodePathOutsideRoot, "%s is outside the working folder. Use a path relative to the working folder, which is %s", quoted(name), quoted(r.dir))
}

// quoted returns a path as errors show it: short, with control characters escaped.
func quoted(name string) string {
	if short := fmt.Sprintf("%.*s", shown, name); short != name {
		return strconv.Quote(short) + "..."
	}
	return strconv.Quote(name)
}

// failure turns an error of the operating system into words for the model, which knows the path as
// name.
func (r *Root) failure(name string, err error) error {
	var pathError *fs.PathError
	var linkError *os.LinkError
	var told *messages.Error
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &pathError):
		err = pathError.Err // leave out the path, which may be 10 KB long
	case errors.As(err, &linkError):
		err = linkError.Err
	}
	switch {
	case err.Error() == "path escapes from parent": // os does not export this error
		return r.outside(name)
	case missing(err):
		return refuse(CodeNotFound, "%s does not exist in the working folder", quoted(name))
	case errors.Is(err, fs.ErrPermission):
		return refuse(CodePermissionDenied, "%s: %v", quoted(name), err)
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP), errors.Is(err, fs.ErrInvalid):
		return refuse(CodeInvalidPath, "%s: %v", quoted(name), err)
	case errors.Is(err, syscall.EISDIR):
		return refuse(CodeNotAFile, "%s is a folder", quoted(name))
	}
	return fmt.Errorf("%s: %w", quoted(name), err)
}

// missing reports whether an error says that nothing has that name.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// openFile opens a regular file for reading and refuses everything else. It checks the file before
// it opens it, because opening a device may have an effect. It checks again afterwards, because
// another file may have taken the name. With O_NONBLOCK a pipe in the file's place cannot block the
// open for ever.
func (r *Root) openFile(name, rel string) (*os.File, fs.FileInfo, error) {
	info, err := r.fs.Stat(rel)
	if err != nil {
		return nil, nil, r.failure(name, err)
	}
	if err := wantFile(name, info); err != nil {
		return nil, nil, err
	}
	f, err := r.fs.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, r.failure(name, err)
	}
	info, err = f.Stat()
	if err == nil {
		err = wantFile(name, info)
	}
	if err != nil {
		f.Close()
		return nil, nil, r.failure(name, err)
	}
	return f, info, nil
}

func wantFile(name string, info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return refuse(CodeNotAFile, "%s is a folder, not a file. Use Glob to list what is in it", quoted(name))
	case mode&fs.ModeNamedPipe != 0:
		return refuse(CodeNotAFile, "%s is a named pipe, not a regular file", quoted(name))
	case mode&fs.ModeSocket != 0:
		return refuse(CodeNotAFile, "%s is a socket, not a regular file", quoted(name))
	}
	return refuse(CodeNotAFile, "%s is a device, not a regular file", quoted(name))
}

// readDir returns the entries of a folder, sorted by name.
func (r *Root) readDir(rel string) ([]fs.DirEntry, error) {
	f, err := r.fs.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return sortedEntries(f)
}

// target returns the file that a write to rel replaces: rel itself, or the file that a symbolic
// link leads to, so that the link stays. The info is nil when there is no file yet.
func (r *Root) target(name, rel string) (string, fs.FileInfo, error) {
	for range maxLinks {
		info, err := r.fs.Lstat(rel)
		switch {
		case missing(err):
			return rel, nil, nil
		case err != nil:
			return "", nil, r.failure(name, err)
		case info.Mode()&fs.ModeSymlink == 0:
			if err := wantFile(name, info); err != nil {
				return "", nil, err
			}
			if info.Mode().Perm()&0o222 == 0 {
				return "", nil, refuse(CodePermissionDenied, "%s is read-only", quoted(name))
			}
			return rel, info, nil
		}
		link, err := r.fs.Readlink(rel)
		if err != nil {
			return "", nil, r.failure(name, err)
		}
		if filepath.IsAbs(link) {
			return "", nil, r.outside(name)
		}
		// Do not clean the path: ".." after a folder that is itself a link means that folder's real
		// parent.
		rel = dirOf(rel) + filepath.ToSlash(link)
	}
	return "", nil, refuse(CodeInvalidPath, "%s: too many symbolic links", quoted(name))
}

// dirOf returns rel up to and including its last slash.
func dirOf(rel string) string { return rel[:strings.LastIndexByte(rel, '/')+1] }

// writable returns nil if rel could be written: it is a file or does not exist, and its folder
// exists or can be created.
func (r *Root) writable(name, rel string) error {
	rel, info, err := r.target(name, rel)
	if err != nil || info != nil {
		return err
	}
	for dir := strings.TrimSuffix(dirOf(rel), "/"); dir != ""; dir = strings.TrimSuffix(dirOf(dir), "/") {
		info, err := r.fs.Stat(dir)
		switch {
		case err == nil && info.IsDir():
			return nil
		case err == nil:
			return refuse(CodeNotAFolder, "%s cannot be created: %s is not a folder", quoted(name), quoted(dir))
		case !missing(err):
			return r.failure(name, err)
		}
	}
	return nil
}

// replace gives the file at rel new content in one step and keeps its permissions. If there is no
// file, it creates the file and its folders. was is the file that the content was made from: if
// another file is there now, or the file has changed, it stays as it is and the error is
// CodeChanged. A nil was replaces anything. replace reports whether the file is new.
func (r *Root) replace(name, rel string, content []byte, was fs.FileInfo) (created bool, err error) {
	rel, info, err := r.target(name, rel)
	if err != nil {
		return false, err
	}
	if info == nil {
		if dir := strings.TrimSuffix(dirOf(rel), "/"); dir != "" {
			if err := r.fs.MkdirAll(dir, 0o777); err != nil {
				return false, r.failure(name, err)
			}
		}
	}
	temp := dirOf(rel) + tempPrefix + rand.Text()
	if err := r.writeTemp(temp, content, info); err != nil {
		r.fs.Remove(temp)
		return false, r.failure(name, err)
	}
	if was != nil && !r.unchanged(rel, was) {
		r.fs.Remove(temp)
		return false, &messages.Error{Code: CodeChanged, Retryable: true, Message: quoted(name) + " was changed by somebody else during the edit. Read it again"}
	}
	if err := r.fs.Rename(temp, rel); err != nil {
		r.fs.Remove(temp)
		return false, r.failure(name, err)
	}
	return info == nil, nil
}

// tempPrefix starts the names of files that are about to replace another. Searches leave them out.
const tempPrefix = ".toolfleet-tmp-"

// writeTemp writes a new file with the permissions of old. The content is on disk before the file
// gets its name: after a power loss there is the old content or the new, never an empty file.
func (r *Root) writeTemp(rel string, content []byte, old fs.FileInfo) error {
	perm := fs.FileMode(0o666)
	if old != nil {
		perm = old.Mode().Perm()
	}
	f, err := r.fs.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && old != nil {
		err = f.Chmod(perm) // the umask has removed bits at the open
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (r *Root) unchanged(rel string, was fs.FileInfo) bool {
	now, err := r.fs.Lstat(rel)
	return err == nil && os.SameFile(now, was) && now.Size() == was.Size() && now.ModTime().Equal(was.ModTime())
}
