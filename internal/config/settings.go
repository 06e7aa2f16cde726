package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	envPrefix = "TOOLFLEET_"
	// ConfigEnv is the variable that names the settings file if no flag does.
	ConfigEnv = envPrefix + "CONFIG"
	// captureContent is the variable that tells OpenTelemetry instrumentations of agents to
	// record message contents.
	captureContent = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
)

// setting is one row of the table. Its type is the type of the Config field that it fills: see
// values.go.
type setting struct {
	key   string
	about string // one sentence, without default and full stop
	field func(*Config) any
	// derived describes a default that follows from another setting or from the machine.
	derived string
	env     []string // names besides TOOLFLEET_<KEY>
	enum    []string
	least   int // minimum of a whole number
}

// settings is the table. Files and listings show the settings in its order.
var settings = []setting{
	{key: "nats.url", field: func(c *Config) any { return &c.NATS.URL }, env: []string{"NATS_URL"},
		about: "NATS server, or several with commas between them. Without one, run, dev and plan need no server"},
	{key: "nats.creds", field: func(c *Config) any { return (*Path)(&c.NATS.Creds) }, env: []string{"NATS_CREDS"},
		about: "File with NATS credentials"},
	{key: "nats.nkey", field: func(c *Config) any { return (*Path)(&c.NATS.NKey) }, env: []string{"NATS_NKEY"},
		about: "File with an nkey seed"},
	{key: "nats.user", field: func(c *Config) any { return &c.NATS.User }, env: []string{"NATS_USER"},
		about: "User at the NATS server"},
	{key: "nats.password", field: func(c *Config) any { return (*Secret)(&c.NATS.Password) }, env: []string{"NATS_PASSWORD"},
		about: "Password of the user; better in the environment than in a file or a flag"},
	{key: "nats.token", field: func(c *Config) any { return (*Secret)(&c.NATS.Token) }, env: []string{"NATS_TOKEN"},
		about: "Token, for servers that ask for one"},
	{key: "nats.tls_ca", field: func(c *Config) any { return (*Path)(&c.NATS.TLSCA) }, env: []string{"NATS_CA"},
		about: "File with the certificate authorities that the server's certificate may come from"},
	{key: "nats.tls_cert", field: func(c *Config) any { return (*Path)(&c.NATS.TLSCert) }, env: []string{"NATS_CERT"},
		about: "File with our TLS certificate"},
	{key: "nats.tls_key", field: func(c *Config) any { return (*Path)(&c.NATS.TLSKey) }, env: []string{"NATS_KEY"},
		about: "File with the key of our TLS certificate"},
	{key: "nats.inbox_prefix", field: func(c *Config) any { return &c.NATS.InboxPrefix },
		about: "Where answers come in, for users that may only listen there", derived: "_INBOX"},
	{key: "nats.timeout", field: func(c *Config) any { return &c.NATS.Timeout },
		about: "How long to try to connect"},
	{key: "prefix", field: func(c *Config) any { return &c.NATS.Prefix },
		about: "First token of every subject, and of the names of streams and buckets"},
	{key: "tenant", field: func(c *Config) any { return &c.Tenant },
		about: "Tenant whose batches run and batch get speak of"},

	{key: "ack_wait", field: func(c *Config) any { return &c.Coordinators.AckWait },
		about: "How long the broker waits for a sign of life before it delivers again"},
	{key: "lease", field: func(c *Config) any { return &c.Workers.Lease },
		about: "How long the claim on a write holds without being renewed"},
	{key: "grace", field: func(c *Config) any { return &c.Coordinators.Grace }, derived: "2s, at most lease/5",
		about: "Between the end of a tool and the end of its lease, and from there until others hold it to have lapsed"},
	{key: "poll", field: func(c *Config) any { return &c.Coordinators.Poll }, derived: "ack_wait/3",
		about: "Between two looks of a coordinator into the journal of a batch that waits"},
	{key: "queue_timeout", field: func(c *Config) any { return &c.Coordinators.QueueTimeout },
		about: "How long a call may wait for a worker"},
	{key: "start_wait", field: func(c *Config) any { return &c.Coordinators.StartWait },
		about: "How long a batch waits for the first tool of a starting fleet, and a call for a worker that has its tool as planned, while others are there"},
	{key: "batch_ttl", field: func(c *Config) any { return &c.Coordinators.BatchTTL },
		about: "Past it nothing of a batch is started. Its records are kept twice as long"},
	{key: "approval_ttl", field: func(c *Config) any { return &c.Workers.ApprovalTTL }, derived: "15m, at most batch_ttl",
		about: "How long people have to answer when a call waits for one; at most batch_ttl"},
	{key: "reply_ttl", field: func(c *Config) any { return &c.Streams.ReplyTTL },
		about: "How long a reply can be fetched, and its batch id is remembered"},
	{key: "audit_ttl", field: func(c *Config) any { return &c.Streams.AuditTTL },
		about: "How long the audit record is kept"},
	{key: "audit.hash", field: func(c *Config) any { return &c.Audit.Hash }, enum: []string{"keyed", "plain"},
		about: "How the audit record hashes arguments and results: keyed by tenant, so that nobody finds them by trying, or plain, as anybody can"},
	{key: "audit.key", field: func(c *Config) any { return &c.Audit.Key }, derived: "made at random, and kept in a bucket",
		about: "Key of those hashes, of 32 bytes at least, the same for every coordinator and worker; better in the environment than in a file"},
	{key: "audit.include", field: func(c *Config) any { return &c.Audit.Include },
		about: "Fields of arguments that the audit record shows, for example [refund.order_id, \"*.customer\"]"},
	{key: "dead_ttl", field: func(c *Config) any { return &c.Streams.DeadTTL },
		about: "How long messages are kept that could not be processed"},
	{key: "worker_ttl", field: func(c *Config) any { return &c.Streams.WorkerTTL },
		about: "How long a worker counts as present after its last word"},
	{key: "window", field: func(c *Config) any { return &c.Coordinators.Window }, least: 1,
		about: "Calls of one session that run at once"},
	{key: "lookahead", field: func(c *Config) any { return &c.Coordinators.Lookahead }, least: 1,
		about: "Batches of one session that are driven at once: reads of one overlap reads of another. 1: one batch after another"},
	{key: "coordinator_slots", field: func(c *Config) any { return &c.Coordinators.Slots }, least: 1,
		about: "Batches that one coordinator drives at once"},
	{key: "coordinator_drain", field: func(c *Config) any { return &c.Coordinators.Drain },
		about: "How long a coordinator goes on with its batches after it was told to end; others take over the rest"},
	{key: "replicas", field: func(c *Config) any { return &c.Streams.Replicas }, least: 1,
		about: "Copies of every stream; 3 survive the loss of a server. Matters when the streams are made"},
	{key: "max_batches", field: func(c *Config) any { return &c.MaxBatches },
		about: "Batches that may wait and run at once, fleet-wide; further ones are refused. 0: no bound"},
	{key: "max_bytes", field: func(c *Config) any { return &c.Streams.MaxBytes },
		about: "Bound of each stream by its name, for example {CALLS: 10GB}. A full one refuses; it never forgets"},
	{key: "erasable", field: func(c *Config) any { return &c.Streams.Erasable },
		about: "Make the journal, results, replies and the audit record without deny_delete and deny_purge, and the buckets with allow_rollup_hdrs, while processes of a build before these protections may still start. Streams that are protected stay so"},
	{key: "poison", field: func(c *Config) any { return &c.Coordinators.Poison }, least: 1,
		about: "Workers that one call may take along before it is given up"},
	{key: "after_unknown", field: func(c *Config) any { return &c.Coordinators.AfterUnknown }, enum: []string{"stop", "continue"},
		about: "What becomes of the later writes of a batch once the outcome of one is unknown: stop skips them, continue runs them"},
	{key: "unsafe_sync", field: func(c *Config) any { return &c.UnsafeSync },
		about: "Start although the NATS server may lose acknowledged messages when the power fails, or does not tell"},

	{key: "http_keys", field: func(c *Config) any { return &c.HTTPKeys },
		about: "Public nkeys of the HTTP servers. A coordinator believes them, and nobody else, which user asks for a batch"},

	{key: "name", field: func(c *Config) any { return &c.Workers.Name }, derived: "host and a random part",
		about: "Name of a worker in records, events and status"},
	{key: "slots", field: func(c *Config) any { return &c.Workers.Slots }, least: 1,
		about: "Calls of one pool that a worker runs at once"},
	{key: "announce", field: func(c *Config) any { return &c.Workers.Announce },
		about: "Between two words of a worker that it is there"},
	{key: "drain", field: func(c *Config) any { return &c.Workers.Drain },
		about: "How long running calls may go on after their worker was told to end"},
	{key: "tools", field: func(c *Config) any { return &c.Tools },
		about: "Tools file: what a worker serves besides the builtin tools"},
	{key: "root", field: func(c *Config) any { return &c.Root },
		about: "Folder of the builtin tools Read, Glob, Grep, Write, Edit and Bash. Bash starts there, in its sandbox"},
	{key: "mcp", field: func(c *Config) any { return &c.MCP },
		about: "File of MCP servers as editors and agents have it (.mcp.json), whose tools a worker serves besides"},
	{key: "secrets", field: func(c *Config) any { return &c.Secrets },
		about: "Secrets folder: one file for each secret that the tools file names"},
	{key: "pools", field: func(c *Config) any { return &c.Workers.Pools },
		about: "Fleet-wide bound of each pool, for example {gpu: {max_in_flight: 4}}"},
	{key: "tenant_pools", field: func(c *Config) any { return &c.TenantPools },
		about: "Pools that belong to one tenant, for example {acme-gpu: acme}. Coordinators give them that tenant's calls alone, and show their tools to nobody else"},
	{key: "worker_tenant", field: func(c *Config) any { return &c.Workers.Tenant },
		about: "The only tenant that a worker serves, if its key at the NATS server is held to one: identities add worker --pool writes it"},
	{key: "worker_pool", field: func(c *Config) any { return &c.Workers.Pool }, derived: "default",
		about: "Pool of a worker's tools that name none, and of the builtin tools"},
	{key: "policy", field: func(c *Config) any { return &c.Policy },
		about: "Policy file: who may do what, who is asked, and the hooks. The same for every coordinator and worker of a fleet"},
	{key: "permissions.default", field: func(c *Config) any { return &c.Permissions.Default }, enum: []string{"allow", "ask", "deny"},
		about: "What holds for calls that no rule matches"},
	{key: "permissions.deny", field: func(c *Config) any { return &c.Permissions.Deny },
		about: "Calls that are never run, for example [\"Bash(rm:*)\", \"Write(/etc/**)\"]"},
	{key: "permissions.ask", field: func(c *Config) any { return &c.Permissions.Ask },
		about: "Calls that a person decides on. Where the policy names no approvers nobody can be asked, and they are refused"},
	{key: "permissions.allow", field: func(c *Config) any { return &c.Permissions.Allow },
		about: "Calls that are run whatever the default says"},
	{key: "approver.key", field: func(c *Config) any { return &c.Approver.Key },
		about: "File with the key that signs an approver's decisions; toolfleet approvals key makes one"},
	{key: "approver.name", field: func(c *Config) any { return &c.Approver.Name }, derived: "the user of the operating system",
		about: "Name of the approver, as the policy has it"},

	{key: "log.level", field: func(c *Config) any { return &c.Log.Level }, enum: []string{"debug", "info", "warn", "error"},
		about: "What is logged on stderr. run logs errors only, unless it is set"},
	{key: "log.format", field: func(c *Config) any { return &c.Log.Format }, enum: []string{"auto", "text", "json"},
		about: "auto is text on a terminal and JSON elsewhere"},
	{key: "trace_content", field: func(c *Config) any { return &c.Workers.TraceContent },
		about: "Put the arguments and results of calls into traces, up to 16 KiB of each. Who reads the traces reads them. " + captureContent + "=true does so too"},
	{key: "trace_url", field: func(c *Config) any { return &c.TraceURL },
		about: "Where a trace can be looked at, for links, for example http://localhost:16686/trace/{trace_id}"},
	{key: "http", field: func(c *Config) any { return &c.HTTP },
		about: "Address for /metrics, /healthz and /readyz, for example :8080"},
	{key: "api.listen", field: func(c *Config) any { return &c.API.Listen },
		about: "Where http and dev serve the HTTP API: an address, unix:FILE, or with dev none"},
	{key: "api.tokens", field: func(c *Config) any { return &c.API.Tokens },
		about: "File with the hashes of the tokens that the HTTP API takes; toolfleet http-token makes one"},
	{key: "api.jwt_issuer", field: func(c *Config) any { return &c.API.JWT.Issuer },
		about: "Issuer whose JSON Web Tokens the HTTP API takes"},
	{key: "api.jwt_audience", field: func(c *Config) any { return &c.API.JWT.Audience },
		about: "Audience that such a token must have"},
	{key: "api.jwt_keys", field: func(c *Config) any { return &c.API.JWT.Keys },
		about: "Public keys of the issuer, a JWKS: a file, or an https address"},
	{key: "api.jwt_tenant_claim", field: func(c *Config) any { return &c.API.JWT.TenantClaim },
		about: "Claim that names the tenant. Without it such tokens act for the tenant of these settings"},
	{key: "api.open", field: func(c *Config) any { return &c.API.Open },
		about: "Serve the HTTP API without tokens also where other machines reach it"},
	{key: "api.origins", field: func(c *Config) any { return &c.API.Origins },
		about: "Web origins whose pages may use the HTTP API, for example [https://ops.example.com]"},
	{key: "server.listen", field: func(c *Config) any { return &c.Server.Listen },
		about: "Where the NATS server of dev and nats listens. It has no passwords, so other addresses than loopback need identities or server.open"},
	{key: "server.data", field: func(c *Config) any { return &c.Server.Data }, derived: "a temporary folder",
		about: "Where the NATS server of dev and nats keeps its data"},
	{key: "server.sync", field: func(c *Config) any { return &c.Server.Sync },
		about: "How long an acknowledged message may be lost to a power failure: always syncs before each acknowledgement"},
	{key: "server.config", field: func(c *Config) any { return &c.Server.Config },
		about: "nats-server configuration file of nats: accounts, users, permissions, TLS. Where it listens, keeps its data and syncs holds unless the other settings say so too"},
	{key: "server.open", field: func(c *Config) any { return &c.Server.Open },
		about: "Let the NATS server of dev and nats listen where other machines reach it, although it asks nobody who they are"},
	{key: "server.max_payload", field: func(c *Config) any { return &c.Server.MaxPayload },
		about: "Largest message that the NATS server of dev and nats takes"},
}

func lookup(key string) (setting, bool) {
	for _, s := range settings {
		if s.key == key {
			return s, true
		}
	}
	return setting{}, false
}

// Env returns the environment variable of a key: TOOLFLEET_ACK_WAIT for ack_wait,
// TOOLFLEET_NATS_URL for nats.url.
func Env(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// envNames returns the variables that can set a setting. The first one that is set counts.
func (s setting) envNames() []string { return append([]string{Env(s.key)}, s.env...) }

// fallback returns the default in words, or "" if there is none.
func (s setting) fallback() string {
	c := defaults()
	switch field := s.field(c).(type) {
	case *string:
		if *field != "" {
			return *field
		}
	case *int:
		if *field != 0 {
			return strconv.Itoa(*field)
		}
	case *time.Duration:
		switch {
		case *field >= 2*time.Minute:
			return short(*field)
		case *field != 0:
			return fmt.Sprintf("%gs", field.Seconds())
		}
	case *Interval, *Size:
		return s.show(c)
	}
	return s.derived
}

// Help returns the help text of each setting's flag, by key: its meaning, default and one
// environment name.
func Help() map[string]string {
	help := map[string]string{}
	for _, s := range settings {
		text := s.about
		if s.fallback() != "" {
			text += " (default " + s.fallback() + ")"
		}
		env := s.envNames()[0]
		if len(s.env) > 0 {
			env = s.env[0]
		}
		help[s.key] = text + " [$" + env + "]."
	}
	return help
}
