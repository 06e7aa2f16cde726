package schemas

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
)

// Server is a long-lived program, or a service, that brings tools of its own by the Model Context
// Protocol. Exactly one of Command and URL is set.
type Server struct {
	Name    string
	Command []string    // started once for each process; a slash makes it relative to the tools file
	Env     []string    // variables of the worker that the processes see
	Values  []HTTPValue // further variables, or for a URL the headers
	URL     string
	// Loopback allows a URL on this machine.
	Loopback bool
	// Prefix stands before the name of each tool.
	Prefix    string
	Processes int      // processes, or sessions of a URL, for each worker
	Tools     []string // names of the tools that are served; none: all
	// Program says that the program was written for toolfleet. Its `_meta` says what its tools
	// promise, and each call comes to it with its whole identity.
	Program bool
	// Trusted says that toolfleet relies on the annotations of the server's tools. Otherwise
	// each tool is a write for which a person is asked.
	Trusted bool
	// Shared allows calls of several tenants in one process at a time.
	Shared   bool
	Pool     string // the pool of its tools; "": the pool that a tool names, else the default
	Lock     string // file with the accepted definitions; "": the server's first list is accepted
	Override map[string]Override
	Sandbox  Sandbox // of the command
	Line     int     // where the entry starts, from 1
}

// Override is the part of a tools file about one tool of a server. It replaces what the server
// says.
type Override struct {
	Kind      messages.Kind
	OnCrash   messages.OnCrash `json:"on_crash"`
	Risk      messages.Tier
	Pool      string
	TimeoutMS int64
	MaxOutput int
	Results   Results
	Ask       *bool // whether a person has to allow each call
}

// NameSeparator stands between the name of a server and that of its tool.
const NameSeparator = "__"

const maxProcesses = 64

type serverInFile struct {
	Name, URL, Pool, Lock, Trust, Tenants string
	Command, Env, Tools                   []string
	Headers                               map[string]httpValueInFile
	Prefix                                *string
	Processes                             int
	Loopback                              bool
	Sandbox                               *sandboxInFile
	Override                              map[string]struct {
		Override
		Timeout   string
		MaxOutput json.RawMessage `json:"max_output"`
	}
}

var serverName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9-]*(_[a-zA-Z0-9-]+)*$`)

// servers reads the entries of the keys mcp and programs.
func (f *yamlFile) servers(mcp, programs []serverInFile) (servers []Server) {
	names := map[string]int{}
	for i, in := range mcp {
		p := fmt.Sprintf("/mcp/%d", i)
		s := f.server(p, in)
		s.Trusted = in.Trust == "annotations"
		if s.Name != "" && !f.faulty[p+"/name"] && !serverName.MatchString(s.Name) {
			f.add(p+"/name", "want letters, digits, - and single _ between them, such as files")
		}
		f.unique(p+"/name", names, s.Name, "a server")
		s.Prefix = s.Name + NameSeparator
		if in.Prefix != nil {
			s.Prefix = *in.Prefix
		}
		if (len(in.Command) > 0) == (in.URL != "") && !f.faulty[p] {
			f.add(p, "want command: [program, argument] or url: https://..., one of them")
		}
		if in.URL != "" && len(in.Env) > 0 {
			f.addKey(p+"/env", "this is for command; a server at a url gets headers")
		}
		if len(in.Headers) > 0 && in.URL == "" {
			f.addKey(p+"/headers", "this is for url; a server that is started gets env")
		}
		servers = append(servers, s)
	}
	for i, in := range programs {
		s := f.server(fmt.Sprintf("/programs/%d", i), in)
		s.Program = true
		if s.Name == "" {
			s.Name = strings.Join(s.Command, " ")
		}
		if in.Prefix != nil {
			s.Prefix = *in.Prefix
		}
		servers = append(servers, s)
	}
	return servers
}

func (f *yamlFile) server(p string, in serverInFile) Server {
	s := Server{
		Name: in.Name, Command: in.Command, Env: nonEmpty(in.Env), URL: in.URL, Loopback: in.Loopback,
		Processes: max(in.Processes, 1), Tools: nonEmpty(in.Tools), Shared: in.Tenants == "shared", Pool: in.Pool, Lock: in.Lock,
		Sandbox: f.serverSandbox(p, in), Line: f.line(p),
	}
	f.url(p+"/url", in.URL)
	if s.Processes > maxProcesses {
		f.add(p+"/processes", "want at most %d", maxProcesses)
	}
	s.Values = f.httpValues(p+"/headers", in.Headers, httpMembers{})
	for name, o := range in.Override {
		at := p + "/override/" + escapeToken(name)
		own := o.Override
		own.MaxOutput = f.maxOutput(at+"/max_output", o.MaxOutput)
		own.TimeoutMS = f.duration(at+"/timeout", o.Timeout).Milliseconds()
		if own.OnCrash != "" && own.Kind != "" && own.Kind != messages.KindWrite {
			f.addKey(at+"/on_crash", "this is for writes; a %s may always be run again", own.Kind)
		}
		if len(s.Tools) > 0 && !slices.Contains(s.Tools, name) {
			f.addKey(at, "tools does not have this tool")
		}
		if s.Override == nil {
			s.Override = map[string]Override{}
		}
		s.Override[name] = own
	}
	return s
}
