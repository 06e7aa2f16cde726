package sandbox

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/enter"
)

// helperName is the first argument of the helper. Lists of processes show it.
const helperName = "toolfleet-sandbox"

// steps is a sealed file with the steps of a plan. All commands of a tool use the same file.
type steps struct{ file *os.File }

func (s *steps) seal(list []enter.Step) (err error) {
	text := enter.Encode(list)
	fd, err := unix.MemfdCreate("toolfleet-sandbox", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil { // containers may refuse it; an outer sandbox of toolfleet does
		s.file, err = readOnlyFile(text)
		return err
	}
	s.file = os.NewFile(uintptr(fd), "sandbox steps")
	if _, err := s.file.Write(text); err != nil {
		return fmt.Errorf("write the steps: %w", err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	if err != nil {
		return fmt.Errorf("seal the steps: %w", err)
	}
	return nil
}

// readOnlyFile returns an open file that has no name in any folder.
func readOnlyFile(text []byte) (*os.File, error) {
	f, err := os.CreateTemp("", "toolfleet-steps-")
	if err != nil {
		return nil, fmt.Errorf("file for the steps: %w", err)
	}
	defer f.Close()
	defer os.Remove(f.Name())
	if _, err := f.Write(text); err != nil {
		return nil, fmt.Errorf("write the steps: %w", err)
	}
	return os.Open(f.Name())
}

// Entry is one command on its way into a sandbox.
type Entry struct {
	ours, childs *os.File // the status pipe
	visit        *visit   // nil: the command reaches no proxy
	// In a network namespace, the helper opens the port of the proxy. It passes the port to
	// the worker through this socket.
	door, childsDoor *os.File
	served           chan *http.Server // gets the server of that, or nil
	// Without a network namespace, the command reaches the proxy at the gate, under this name.
	gate    *gate
	name    string
	refused []string
}

// Wrap changes a command so that it enters the sandbox when it starts. The caller sets
// SysProcAttr, Env and ExtraFiles before. A nil Box changes nothing.
func (b *Box) Wrap(cmd *exec.Cmd) (*Entry, error) {
	if b == nil || cmd.Err != nil {
		return nil, nil // Start reports cmd.Err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	first := 3 + len(cmd.ExtraFiles)
	cmd.ExtraFiles = append(cmd.ExtraFiles[:len(cmd.ExtraFiles):len(cmd.ExtraFiles)], b.sealed.file, w)
	cmd.Args = append([]string{helperName, cmd.Path}, cmd.Args...)
	cmd.Path = "/proc/self/exe"
	cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], enter.Variable+"="+strconv.Itoa(first)+","+strconv.Itoa(first+1))
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	separate(cmd.SysProcAttr, b.Plan.Spaces, os.Geteuid() == 0)
	e := &Entry{ours: r, childs: w}
	if err := e.open(b, cmd); err != nil {
		e.Abandon()
		return nil, fmt.Errorf("sandbox: way to the proxy: %w", err)
	}
	return e, nil
}

// open prepares the way by which the command reaches the proxy.
func (e *Entry) open(b *Box, cmd *exec.Cmd) error {
	address := fmt.Sprintf("127.0.0.1:%d", proxyPort)
	switch b.Plan.Way {
	case NoWay:
		return nil
	case OwnSpace:
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		e.door, e.childsDoor = os.NewFile(uintptr(pair[0]), "door"), os.NewFile(uintptr(pair[1]), "door")
		cmd.ExtraFiles = append(cmd.ExtraFiles, e.childsDoor)
		e.visit = newVisit(b.Proxy)
	case OnePort:
		g, err := openGate()
		if err != nil {
			return err
		}
		e.visit, e.gate = newVisit(b.Proxy), g
		e.name = g.admit(e.visit)
		address = fmt.Sprintf("%s:x@127.0.0.1:%d", e.name, g.port)
	}
	cmd.Env = append(proxyEnviron("http://"+address), cmd.Env...)
	return nil
}

// receive gets the port that the helper has opened, and serves the command there.
func (e *Entry) receive() {
	defer e.door.Close()
	defer close(e.served)
	conn, err := net.FileConn(e.door)
	if err != nil {
		return
	}
	defer conn.Close()
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return
	}
	file := os.NewFile(uintptr(fds[0]), "proxy")
	defer file.Close()
	if l, err := net.FileListener(file); err == nil {
		e.served <- serve(l, e.visit)
	}
}

// close closes the way to the proxy. It returns what the proxy refused.
func (e *Entry) close() (refused []string) {
	if e.served != nil {
		if server := <-e.served; server != nil { // the helper has ended, so there is an answer
			defer server.Close()
		}
	} else if e.door != nil {
		_ = e.door.Close()
	}
	if e.gate != nil {
		e.gate.leave(e.name)
	}
	if e.visit != nil {
		refused = e.visit.end()
	}
	return refused
}

// separate gives the helper its namespaces. If the worker is root, the helper maps all users,
// so that files keep their owners. Otherwise the helper maps only its own user. It does so
// itself and needs capabilities for that after its exec: the worker hides from other
// processes, so no other process may write its map.
func separate(attr *syscall.SysProcAttr, n Namespaces, root bool) {
	if n.Mount {
		attr.Cloneflags |= unix.CLONE_NEWNS | unix.CLONE_NEWIPC
	}
	if n.PID {
		attr.Cloneflags |= unix.CLONE_NEWPID
	}
	if n.Net {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	if !n.User {
		return
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	if root {
		all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
		attr.UidMappings, attr.GidMappings, attr.GidMappingsEnableSetgroups = all, all, true
		return
	}
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_NET_ADMIN}
}

// Started completes the start of the command, whether the start succeeded or not.
func (e *Entry) Started() {
	if e == nil {
		return
	}
	_ = e.childs.Close()
	if e.door != nil {
		_ = e.childsDoor.Close()
		e.served = make(chan *http.Server, 1)
		go e.receive() // it ends with the helper, which has the other end; close waits for it
	}
}

// Refused returns what the proxy refused to the command, in words. Call it after
// [Entry.Ended].
func (e *Entry) Refused() []string {
	if e == nil {
		return nil
	}
	return e.refused
}

// Ended returns how the command ended. Call it after the started process has ended. ok is
// false if the started process was the command itself. An error says that the command never
// ran.
func (e *Entry) Ended() (ws syscall.WaitStatus, ok bool, err error) {
	if e == nil {
		return 0, false, nil
	}
	defer e.ours.Close()
	e.refused = e.close()
	report, err := io.ReadAll(io.LimitReader(e.ours, 4096))
	switch {
	case err != nil || len(report) == 0:
		return 0, false, nil
	case report[0] == enter.Failed:
		return 0, false, notRun(string(report[1:]))
	}
	status, ok := enter.EndedWith(report)
	return syscall.WaitStatus(status), ok, nil
}

// Abandon closes an entry whose command was not started.
func (e *Entry) Abandon() {
	if e != nil {
		_ = e.childs.Close()
		_ = e.ours.Close()
		if e.childsDoor != nil {
			_ = e.childsDoor.Close()
		}
		e.close()
	}
}
