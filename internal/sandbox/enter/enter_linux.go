package enter

import "syscall"

func init() {
	fds, ok := syscall.Getenv(Variable)
	if !ok {
		return
	}
	steps, status, ok := descriptors(fds)
	if !ok {
		syscall.Exit(125)
	}
	// An init function runs on the main thread. The changes apply only to the thread that
	// makes them. exec keeps only that thread.
	h := helper{status: status, ruleset: -1}
	h.run(steps)
}

// descriptors reads two file descriptors from a text such as "3,4".
func descriptors(s string) (steps, status int, ok bool) {
	n, seen := [2]int{}, 0
	for _, c := range []byte(s) {
		switch {
		case c == ',' && seen == 0:
			seen = 1
		case c >= '0' && c <= '9' && n[seen] < 1<<16:
			n[seen] = n[seen]*10 + int(c-'0')
		default:
			return 0, 0, false
		}
	}
	return n[0], n[1], seen == 1 && n[0] > 2 && n[1] > 2
}

type helper struct {
	status  int // the status pipe
	ruleset int // the Landlock ruleset; -1: none
	fork    bool
}

// run takes the steps and then becomes the command. The arguments of this process are a name
// for the helper, the path of the program, and the program's arguments, beginning with its own
// name. run does not return.
func (h *helper) run(steps int) {
	args := commandLine()
	folder, lost := syscall.Getwd()
	if err := h.confine(steps); err != nil {
		h.fail(err.step, err.errno)
	}
	if lost == nil { // the current folder still belongs to the mounts before the steps
		_ = syscall.Chdir(folder)
	}
	if len(args) < 3 {
		h.fail("read the command line", syscall.EINVAL)
	}
	env := syscall.Environ()
	for i, v := range env {
		if len(v) > len(Variable) && v[:len(Variable)+1] == Variable+"=" {
			env = append(env[:i:i], env[i+1:]...)
			break
		}
	}
	if h.fork {
		h.runChild(args, env)
	}
	if err := syscall.Exec(args[1], args[2:], env); err != nil {
		errno, _ := err.(syscall.Errno)
		h.fail("", errno)
	}
}

// runChild runs the command as a child. It collects orphans until the command ends, and
// reports how the command ended. When this process ends, the kernel kills all other processes
// of its namespace.
func (h *helper) runChild(args, env []string) {
	// Without this call, a command of the same user could open this process's status pipe in
	// /proc.
	if errno := prctl(syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		h.fail("close the helper to the command", errno)
	}
	files := []uintptr{0, 1, 2}
	for fd := 3; fd < h.lowest(); fd++ {
		files = append(files, uintptr(fd))
	}
	pid, err := syscall.ForkExec(args[1], args[2:], &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		errno, _ := err.(syscall.Errno)
		h.fail("", errno)
	}
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			h.fail("wait for the command", err.(syscall.Errno))
		case got == pid:
			h.write(number([]byte{Ended}, uint64(ws), 4))
			syscall.Exit(0)
		}
	}
}

// lowest returns the lowest descriptor that the command must not have.
func (h *helper) lowest() int { return h.status - 1 }

// fail reports a failed step and ends the process. An empty step means the start of the
// command itself.
func (h *helper) fail(step string, errno syscall.Errno) {
	text := errno.Error()
	if step != "" {
		text = step + ": " + text
	}
	h.write(append([]byte{Failed}, text...))
	syscall.Exit(125)
}

func (h *helper) write(b []byte) { _, _ = syscall.Write(h.status, b) }

// failure is a step that failed.
type failure struct {
	step  string
	errno syscall.Errno
}

func (h *helper) confine(fd int) *failure {
	syscall.CloseOnExec(fd)
	syscall.CloseOnExec(h.status)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return &failure{"read the steps", err.(syscall.Errno)}
	}
	b := make([]byte, st.Size)
	// Other commands use the same open file, so its offset must not move.
	if n, err := syscall.Pread(fd, b, 0); err != nil || n != len(b) {
		return &failure{"read the steps", syscall.EIO}
	}
	for len(b) > 0 {
		s, rest, ok := Decode(b)
		if !ok {
			return &failure{"read the steps", syscall.EINVAL}
		}
		b = rest
		if errno := h.take(s); errno != 0 {
			return &failure{what(s), errno}
		}
	}
	return nil
}

// take carries out one step.
func (h *helper) take(s Step) syscall.Errno {
	switch s.Op {
	case MapUser:
		return mapUser(s.A, s.B)
	case OwnMounts:
		return mount("", "/", "", syscall.MS_REC|syscall.MS_SLAVE, "")
	case Listen:
		return h.listen(int(s.A))
	case FreezeAll:
		return setMount("/", mountAttrReadOnly|mountAttrNoDevices, 0, atRecursive)
	case Device:
		return unlessMissing(device(s.Path))
	case Writable:
		return unlessMissing(rebind(s.Path, false))
	case Pin:
		return unlessMissing(bind(s.Path))
	case ReadOnly:
		return unlessMissing(rebind(s.Path, true))
	case Hide:
		return unlessMissing(hide(s.Path))
	case MountProc:
		return mount("proc", s.Path, "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, "")
	case MostPIDs:
		_ = writeFile("/proc/sys/kernel/pid_max", decimal(s.A)) // on an error, the worker counts
		return 0
	case MountShm:
		return unlessMissing(mount("tmpfs", s.Path, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=1777,size="+decimal(s.A)))
	case Limit:
		return limit(int(s.A), s.B)
	case OOMScore:
		_ = writeFile("/proc/self/oom_score_adj", s.Path) // fails if the score is higher
		return 0
	case DropCaps:
		return dropCaps(s.A)
	case NoNewPrivs:
		return prctl(prSetNoNewPrivs, 1, 0)
	case Ruleset:
		return h.newRuleset(s.Path)
	case Allow:
		return unlessMissing(h.allow(s, false))
	case Follow:
		return unlessMissing(h.allow(s, true))
	case AllowPort:
		return h.allowPort(s.A, s.B)
	case Restrict:
		return h.restrict()
	case Filter:
		return filter(s.Path)
	case Fork:
		h.fork = true
		return 0
	case Probe:
		syscall.Exit(0)
	}
	return syscall.EINVAL
}

// what describes a step in words, for an error.
func what(s Step) string {
	switch s.Op {
	case MapUser:
		return "map the user into a namespace"
	case OwnMounts, FreezeAll:
		return "separate the mounts"
	case Listen:
		return "open the way to the proxy"
	case AllowPort:
		return "allow a port with Landlock"
	case Device:
		return "keep " + s.Path
	case Writable:
		return "make writable " + s.Path
	case Pin, ReadOnly:
		return "protect " + s.Path
	case Hide:
		return "hide " + s.Path
	case MountProc, MountShm:
		return "mount " + s.Path
	case Limit:
		return "set limit " + decimal(s.A)
	case DropCaps:
		return "drop capabilities"
	case NoNewPrivs:
		return "set no_new_privs"
	case Ruleset, Restrict:
		return "restrict files with Landlock"
	case Allow, Follow:
		return "allow " + s.Path + " with Landlock"
	case Filter:
		return "filter system calls"
	}
	return "step " + string(rune(s.Op))
}

// unlessMissing ignores three errors: the path does not exist, this user cannot reach it
// anyway, or it has become a link.
func unlessMissing(errno syscall.Errno) syscall.Errno {
	if errno == syscall.ENOENT || errno == syscall.ENOTDIR || errno == syscall.EACCES || errno == syscall.ELOOP {
		return 0
	}
	return errno
}

// commandLine returns the arguments of this process. It does not use os.Args, because package
// os is not initialized yet.
func commandLine() []string {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	var all []byte
	for buf := make([]byte, 64<<10); ; {
		n, err := syscall.Read(fd, buf)
		if n <= 0 || err != nil {
			break
		}
		all = append(all, buf[:n]...)
	}
	var args []string
	for start, i := 0, 0; i < len(all); i++ {
		if all[i] == 0 {
			args = append(args, string(all[start:i]))
			start = i + 1
		}
	}
	return args
}

func decimal(n uint64) string {
	if n == 0 {
		return "0"
	}
	var b [20]byte
	i := len(b)
	for ; n > 0; n /= 10 {
		i--
		b[i] = byte('0' + n%10)
	}
	return string(b[i:])
}
