package schemas

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

var (
	mcpVariable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}`)
	notInName   = regexp.MustCompile(`[^a-zA-Z0-9-]+`)
)

// mcpJSONServer is a server entry. It has only the members that toolfleet reads; editors and
// agents use further ones.
type mcpJSONServer struct {
	Type, Command, URL string
	Args               []string
	Env, Headers       map[string]string
	Disabled           bool
	Trust              string
	Sandbox            json.RawMessage // as in a tools file
}

// ParseMCPJSON reads a file .mcp.json of an editor or agent: servers by name, under
// mcpServers or servers. ${NAME} and ${NAME:-default} stand for environment variables. A
// server is trusted only if its entry has "trust": "annotations". The key "sandbox" has the
// form that it has in a tools file.
func ParseMCPJSON(name string, data []byte, getenv func(string) string) ([]Server, error) {
	var file struct {
		MCPServers, Servers map[string]mcpJSONServer
	}
	if err := rawjson.Check(data); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	entries := file.MCPServers
	if entries == nil {
		entries = file.Servers
	}
	if entries == nil {
		return nil, fmt.Errorf(`%s: want {"mcpServers": {"files": {"command": "npx", "args": ["-y", "server"]}}}`, name)
	}
	var servers []Server
	for _, key := range rawjson.SortedKeys(entries) {
		entry := entries[key]
		if entry.Disabled {
			continue
		}
		server, err := entry.server(key, getenv)
		if err != nil {
			return nil, fmt.Errorf("%s: server %.80q: %w", name, key, err)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

func (in mcpJSONServer) server(key string, getenv func(string) string) (Server, error) {
	x := expander{getenv: getenv}
	own := strings.Trim(notInName.ReplaceAllString(key, "-"), "-")
	s := Server{Name: own, Prefix: own + NameSeparator, Processes: 1, URL: x.expand(in.URL), Loopback: true, Trusted: in.Trust == "annotations"}
	if in.Command != "" {
		s.Command = []string{x.expand(in.Command)}
		for _, arg := range in.Args {
			s.Command = append(s.Command, x.expand(arg))
		}
	}
	values := in.Headers
	if s.URL == "" {
		values = in.Env
	}
	for _, name := range rawjson.SortedKeys(values) {
		s.Values = append(s.Values, HTTPValue{Name: name, Template: x.expand(values[name])})
	}
	var err error
	s.Sandbox, err = sandboxOfJSON(in.Sandbox)
	switch {
	case err != nil:
		return s, err
	case x.missing != "":
		return s, fmt.Errorf("the environment variable %s is not set; ${%s:-default} has a default", x.missing, x.missing)
	case own == "" || len(own) > 32:
		return s, fmt.Errorf("want a name of at most 32 letters, digits and -")
	case in.Type == "sse":
		return s, fmt.Errorf("the transport sse is no more; use http")
	case (len(s.Command) > 0) == (s.URL != ""):
		return s, fmt.Errorf("want a command or a url, one of them")
	}
	return s, nil
}

// sandboxOfJSON reads a sandbox with the reader of the tools file. That works because JSON is
// YAML.
func sandboxOfJSON(raw json.RawMessage) (Sandbox, error) {
	if len(raw) == 0 {
		return Sandbox{}, nil
	}
	file, err := ParseToolsFile("sandbox", fmt.Appendf(nil, `{"programs": [{"command": ["program"], "sandbox": %s}]}`, raw))
	if err != nil {
		return Sandbox{}, err
	}
	return file.Servers[0].Sandbox, nil
}

// expander replaces variables in text.
type expander struct {
	getenv  func(string) string
	missing string // the first variable that is not set and has no default
}

func (x *expander) expand(text string) string {
	return mcpVariable.ReplaceAllStringFunc(text, func(place string) string {
		parts := mcpVariable.FindStringSubmatch(place)
		value := x.getenv(parts[1])
		if value == "" && parts[2] == "" && x.missing == "" {
			x.missing = parts[1]
		}
		if value == "" {
			return parts[3]
		}
		return value
	})
}
