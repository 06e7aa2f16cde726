package check

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

func TestCompose(t *testing.T) {
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":            {},
		"unknown key":         {source{"docker-compose.yml": {"stop_grace_period:", "stop_grace_periode:"}}, "stop_grace_periode"},
		"unknown nested key":  {source{"docker-compose.yml": {"interval: 5s", "intervall: 5s"}}, "intervall"},
		"unknown service":     {source{"docker-compose.yml": {"depends_on: {nats:", "depends_on: {nuts:"}}, "nuts"},
		"floating image":      {source{"docker-compose.yml": {"nats:2.14.5-alpine", "nats:latest"}}, "names no version"},
		"lost mount":          {source{"docker-compose.yml": {"deploy/compose/tools.yaml", "deploy/tools.yaml"}}, "deploy/tools.yaml is missing"},
		"short grace":         {source{"docker-compose.yml": {"stop_grace_period: 60s", "stop_grace_period: 59s"}}, "worker: stop_grace_period 59s"},
		"longer write":        {source{"deploy/compose/tools.yaml": {"kind: read", "timeout: 2m"}}, "worker: stop_grace_period 1m0s"},
		"one worker":          {source{"docker-compose.yml": {"replicas: 2", "replicas: 1"}}, "worker: 1 replicas"},
		"open to the network": {source{"docker-compose.yml": {"127.0.0.1:4222:4222", "4222:4222"}}, "nats: port 4222 is open"},
		"no such stage":       {source{"docker-compose.yml": {"target: shell", "target: bash"}}, "no stage bash"},
		"no restart":          {source{"docker-compose.yml": {"restart: unless-stopped", "restart: \"no\""}}, "restart"},
		"always observed":     {source{"docker-compose.yml": {"    profiles: [observe]\n    image: jaeger", "    image: jaeger"}}, "jaeger: runs without the profile"},
		"unnamed profile":     {source{"docker-compose.yml": {"profiles: [observe]", "profiles: [watch]"}}, "otel-collector"},
		"traces by default":   {source{"docker-compose.yml": {"${COMPOSE_PROFILES:+http://otel-collector:4318}", "http://otel-collector:4318"}}, "without the profile traces go to"},
		"traces to nobody":    {source{"docker-compose.yml": {"+http://otel-collector:4318", "+http://collector:4318"}}, "collector:4318 is no service"},
		"traces to no port":   {source{"docker-compose.yml": {"+http://otel-collector:4318", "+http://otel-collector:4319"}}, "otel-collector does not listen at 4319"},
		"another's identity":  {source{"docker-compose.yml": {"{subpath: worker}", "{subpath: operator}"}}, "worker: sees the identities of others"},
		"every identity":      {source{"docker-compose.yml": {", volume: {subpath: http}", ""}}, "http: sees the identities of others"},
		"no identity":         {source{"docker-compose.yml": {"source: identities, target: /identity, read_only: true, volume: {subpath: coordinator}", "source: nats, target: /identity"}}, "coordinator: has no identity"},
		"lost settings":       {source{"docker-compose.yml": {"prometheus/prometheus.yml:/etc", "prometheus/prom.yml:/etc"}}, "prom.yml is missing"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, composeProblems(t, tc.edit), tc.want) })
	}
}

// TestComposeCommands checks that the binary knows the commands of the services.
func TestComposeCommands(t *testing.T) {
	project, err := loadCompose(t, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, service := range project.Services {
		if service.Build != nil {
			expect(t, commandProblems(t, service.Command), "")
			t.Logf("%s: toolfleet %q", name, service.Command)
		}
	}
}

// observe is the profile with the tools for observing the fleet.
const observe = "observe"

// loadCompose reads the file as `docker compose` does with COMPOSE_PROFILES set to profile.
func loadCompose(t *testing.T, edits source, profile string) (*types.Project, error) {
	dir, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "docker-compose.yml"), Content: edits.read(t, "docker-compose.yml")}},
		Environment: types.Mapping{"COMPOSE_PROFILES": profile},
	}, func(o *loader.Options) {
		o.SetProjectName("toolfleet", true)
		if profile != "" {
			o.Profiles = []string{profile}
		}
	})
}

// restarts returns the restart policy that a service should have. A service for whose end
// others wait must not restart.
func restarts(project *types.Project, name string) string {
	for _, s := range project.Services {
		if s.DependsOn[name].Condition == types.ServiceConditionCompletedSuccessfully {
			return types.RestartPolicyNo
		}
	}
	return types.RestartPolicyUnlessStopped
}

// identityProblems checks that a part of the fleet sees its own identity and no other.
func identityProblems(name string, s types.ServiceConfig) (found []string) {
	for _, v := range s.Volumes {
		if v.Source == "identities" && (v.Volume == nil || v.Volume.Subpath != name || !v.ReadOnly || v.Target != "/identity") {
			found = append(found, name+": sees the identities of others, or may change its own")
		}
	}
	if !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Source == "identities" }) {
		found = append(found, name+": has no identity")
	}
	return found
}

func composeProblems(t *testing.T, edits source) (found []string) {
	bare, err := loadCompose(t, edits, "")
	if err != nil {
		return []string{err.Error()}
	}
	project, err := loadCompose(t, edits, observe)
	if err != nil {
		return []string{err.Error()}
	}
	found = observedProblems(t, edits, bare, project)
	report := func(service, format string, args ...any) {
		found = append(found, service+": "+fmt.Sprintf(format, args...))
	}
	for name, s := range project.Services {
		if s.Build == nil && !pinned(s.Image) {
			report(name, "image %s names no version", s.Image)
		}
		if s.Build != nil && s.Build.Target != "" && !slices.Contains(stages(t), s.Build.Target) {
			report(name, "the Dockerfile has no stage %s", s.Build.Target)
		}
		if want := restarts(project, name); s.Restart != want {
			report(name, "restart is %q, want %q", s.Restart, want)
		}
		if s.Environment["TOOLFLEET_CONFIG"] != nil {
			found = append(found, identityProblems(name, s)...)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				report(name, "port %d is open to the network and nothing asks for a password", p.Target)
			}
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				if _, err := os.Stat(v.Source); err != nil {
					report(name, "mount %s is missing", v.Source)
				}
			}
		}
	}
	worker := project.Services["worker"]
	if n := worker.GetScale(); n != 2 {
		report("worker", "%d replicas, want 2", n)
	}
	need := longestWrite(t, edits.read(t, "deploy/compose/tools.yaml")) + reportTime
	if grace := time.Duration(*worker.StopGracePeriod); grace < need {
		report("worker", "stop_grace_period %v, want %v: a write is cut off", grace, need)
	}
	return found
}
