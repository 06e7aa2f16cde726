package check

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	psapi "k8s.io/pod-security-admission/api"
	pspolicy "k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const base = "deploy/kustomize/base"

func TestKustomize(t *testing.T) {
	worker, network, tools, http := base+"/worker.yaml", base+"/network.yaml", base+"/tools.yaml", base+"/http.yaml"
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":              {},
		"misspelt key":          {source{worker: {"terminationGracePeriodSeconds", "terminationGraceSeconds"}}, `unknown field "spec.template.spec.terminationGraceSeconds"`},
		"key in wrong case":     {source{worker: {"runAsNonRoot", "RunAsNonRoot"}}, `unknown field "spec.template.spec.securityContext.RunAsNonRoot"`},
		"misspelt policy key":   {source{network: {"policyTypes", "policyType"}}, `unknown field "spec.policyType"`},
		"misspelt kustomize":    {source{base + "/kustomization.yaml": {"configMapGenerator", "configMapGenerators"}}, "configMapGenerators"},
		"unknown kind":          {source{worker: {"kind: PodDisruptionBudget", "kind: PodDisruption"}}, "PodDisruption"},
		"lost tools file":       {source{base + "/kustomization.yaml": {"files: [tools.yaml, toolfleet.yaml]", "files: [toolfleet.yaml]"}}, "tools.yaml is not in"},
		"wrong selector":        {source{worker: {"    matchLabels: *labels", "    matchLabels: {app: x}"}}, "selector"},
		"short grace":           {source{worker: {"terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 59"}}, "59s"},
		"longer write":          {source{tools: {"kind: read", "timeout: 2m"}}, "want 2m30s"},
		"floating image":        {source{base + "/kustomization.yaml": {"newTag: 0.1.0-dev", "newTag: latest"}}, "names no version"},
		"root":                  {source{worker: {"runAsNonRoot: true", "runAsNonRoot: false"}}, "runAsNonRoot"},
		"writable capabilities": {source{worker: {"drop: [ALL]", "drop: [CHOWN]"}}, "capabilities"},
		"no seccomp":            {source{worker: {"seccompProfile: {type: RuntimeDefault}", "seccompProfile: {type: Unconfined}"}}, "seccomp"},
		"writable root":         {source{worker: {"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"}}, "can be written"},
		"liveness on NATS":      {source{worker: {"path: /healthz", "path: /readyz"}}, "liveness"},
		"lost port":             {source{worker: {"{name: http, containerPort", "{name: web, containerPort"}}, "port http"},
		"token mounted":         {source{worker: {"automountServiceAccountToken: false", "automountServiceAccountToken: true"}}, "token"},
		"no memory limit":       {source{worker: {"limits: {memory: 512Mi}", "limits: {}"}}, "memory"},
		"unguarded pods":        {source{network: {"    matchLabels:\n      app.kubernetes.io/name: toolfleet\n  policyTypes", "    matchLabels:\n      app: x\n  policyTypes"}}, "no network policy"},
		"unscraped pods":        {source{network: {"  selector:\n    app.kubernetes.io/name: toolfleet", "  selector:\n    app: x"}}, "no service"},
		"scraped elsewhere":     {source{network: {`prometheus.io/port: "8080"`, `prometheus.io/port: "9090"`}}, "does not lead to its metrics"},
		"budget for nobody":     {source{worker: {"  maxUnavailable: 1\n  selector:\n    matchLabels:\n      app.kubernetes.io/name: toolfleet", "  maxUnavailable: 1\n  selector:\n    matchLabels:\n      app: x"}}, "no disruption budget"},
		"stuck node drain":      {source{worker: {"maxUnavailable: 1", "maxUnavailable: 0"}}, "allows no disruption"},
		"api for nobody":        {source{http: {"app.kubernetes.io/component: http\n  ports", "app.kubernetes.io/component: https\n  ports"}}, "no service leads to its API"},
		"api at no port":        {source{http: {"targetPort: api", "targetPort: web"}}, "no service leads to its API"},
		"api for no agent":      {source{http: {"port: api}\n", "port: http}\n"}}, "no network policy lets agents in"},
		"api for everybody":     {source{http: {"    - from:\n        - namespaceSelector:\n            matchLabels: {toolfleet.dev/agents: \"true\"}\n      ports:", "    - ports:"}}, "no network policy lets agents in"},
		"another's identity":    {source{worker: {"toolfleet-worker-identity", "toolfleet-operator-identity"}}, "does not have the identity"},
		"no TLS":                {source{worker: {"tls://", "nats://"}}, "without TLS"},
		"api without tokens":    {source{http: {"secret: {secretName: toolfleet-http-tokens}", "emptyDir: {}"}}, "tokens are in no secret"},
		"lax namespace":         {source{base + "/namespace.yaml": {"enforce: restricted", "enforce: privileged"}}, "namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := build(t, tc.edit)
			if err != nil {
				expect(t, []string{err.Error()}, tc.want)
				return
			}
			expect(t, m.problems(t), tc.want)
		})
	}
}

// TestKustomizeCommands checks that the binary knows the commands of the pods.
func TestKustomizeCommands(t *testing.T) {
	m, err := build(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range m.deployments {
		expect(t, commandProblems(t, d.Spec.Template.Spec.Containers[0].Args), "")
	}
}

// manifests holds all objects of the base, by kind.
type manifests struct {
	namespaces  []corev1.Namespace
	accounts    []corev1.ServiceAccount
	configs     []corev1.ConfigMap
	services    []corev1.Service
	deployments []appsv1.Deployment
	budgets     []policyv1.PodDisruptionBudget
	policies    []networkingv1.NetworkPolicy
}

// build runs kustomize on the base and decodes the objects, as strictly as the API server would.
func build(t *testing.T, edits source) (m manifests, err error) {
	fsys := filesys.MakeFsInMemory()
	files, err := os.ReadDir(filepath.Join(root, base))
	if err != nil {
		return m, err
	}
	for _, f := range files {
		if err := fsys.WriteFile("/base/"+f.Name(), edits.read(t, base+"/"+f.Name())); err != nil {
			return m, err
		}
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fsys, "/base")
	if err != nil {
		return m, err
	}
	for _, r := range resources.Resources() {
		doc, err := r.MarshalJSON()
		if err != nil {
			return m, err
		}
		if err := m.add(r.GetKind(), doc); err != nil {
			return m, fmt.Errorf("%s %s: %w", r.GetKind(), r.GetName(), err)
		}
	}
	return m, nil
}

func (m *manifests) add(kind string, doc []byte) error {
	switch kind {
	case "Namespace":
		return appendStrict(&m.namespaces, doc)
	case "ServiceAccount":
		return appendStrict(&m.accounts, doc)
	case "ConfigMap":
		return appendStrict(&m.configs, doc)
	case "Service":
		return appendStrict(&m.services, doc)
	case "Deployment":
		return appendStrict(&m.deployments, doc)
	case "PodDisruptionBudget":
		return appendStrict(&m.budgets, doc)
	case "NetworkPolicy":
		return appendStrict(&m.policies, doc)
	}
	return fmt.Errorf("no check for this kind")
}

func appendStrict[T any](to *[]T, doc []byte) error {
	var object T
	strict, err := json.UnmarshalStrict(doc, &object)
	if err := errors.Join(append(strict, err)...); err != nil {
		return err
	}
	*to = append(*to, object)
	return nil
}

// problems checks the objects against one another and against the rules of this package.
func (m manifests) problems(t *testing.T) (found []string) {
	if len(m.deployments) != 3 {
		found = append(found, fmt.Sprintf("%d deployments, want coordinator, worker and http", len(m.deployments)))
	}
	for _, ns := range m.namespaces {
		if ns.Labels[psapi.EnforceLevelLabel] != string(psapi.LevelRestricted) {
			found = append(found, "namespace "+ns.Name+" does not enforce the restricted standard")
		}
	}
	for _, d := range m.deployments {
		for _, p := range slices.Concat(m.aboutPods(t, d), m.aboutNeighbours(d), m.aboutAPI(d), aboutIdentity(d), podSecurity(d)) {
			found = append(found, d.Name+": "+p)
		}
	}
	return found
}

// aboutPods checks the pods of a deployment.
func (m manifests) aboutPods(t *testing.T, d appsv1.Deployment) (found []string) {
	pod, c := d.Spec.Template.Spec, d.Spec.Template.Spec.Containers[0]
	if !pinned(c.Image) {
		found = append(found, "image "+c.Image+" names no version")
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		found = append(found, "mounts a token that it does not need")
	}
	if c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
		found = append(found, "its root file system can be written")
	}
	if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() {
		found = append(found, "has no memory request or limit")
	}
	config, ok := m.config(pod)
	if !ok {
		return append(found, "mounts a config map that is not there")
	}
	need := longestWrite(t, []byte(config.Data["tools.yaml"])) + reportTime
	if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < need {
		found = append(found, fmt.Sprintf("gets %v to end, want %v: a write is cut off", grace, need))
	}
	for _, word := range append(slices.Clone(c.Args), env(c, "TOOLFLEET_CONFIG")) {
		if file, ok := strings.CutPrefix(word, "/etc/toolfleet/"); ok && config.Data[file] == "" {
			found = append(found, file+" is not in "+config.Name)
		}
	}
	for _, p := range []struct {
		name  string
		probe *corev1.Probe
		path  string
	}{
		{"startup", c.StartupProbe, "/healthz"},
		{"liveness", c.LivenessProbe, "/healthz"},
		{"readiness", c.ReadinessProbe, "/readyz"},
	} {
		if p.probe == nil || p.probe.HTTPGet == nil || p.probe.HTTPGet.Path != p.path {
			found = append(found, p.name+" probe: want "+p.path)
		} else if !hasPort(c, p.probe.HTTPGet.Port.String()) {
			found = append(found, p.name+" probe: there is no port "+p.probe.HTTPGet.Port.String())
		}
	}
	return found
}

// aboutNeighbours checks that the other objects select the deployment's pods.
func (m manifests) aboutNeighbours(d appsv1.Deployment) (found []string) {
	pods := d.Spec.Template.Labels
	if !selects(d.Spec.Selector, pods) {
		found = append(found, "its selector does not select its own pods")
	}
	account := slices.IndexFunc(m.accounts, func(a corev1.ServiceAccount) bool { return a.Name == d.Spec.Template.Spec.ServiceAccountName })
	if account < 0 {
		found = append(found, "its service account is not there")
	} else if mount := m.accounts[account].AutomountServiceAccountToken; mount == nil || *mount {
		found = append(found, "its service account mounts a token")
	}
	if !slices.ContainsFunc(m.services, func(s corev1.Service) bool {
		return labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pods)) && hasPort(d.Spec.Template.Spec.Containers[0], s.Spec.Ports[0].TargetPort.String())
	}) {
		found = append(found, "no service leads to its metrics")
	}
	for _, s := range m.services {
		if s.Spec.Ports[0].Name == apiPort {
			continue
		}
		if a := s.Annotations; a["prometheus.io/scrape"] != "true" || a["prometheus.io/path"] != "/metrics" || a["prometheus.io/port"] != fmt.Sprint(s.Spec.Ports[0].Port) {
			found = append(found, "what Prometheus reads at the service "+s.Name+" does not lead to its metrics")
		}
	}
	if !slices.ContainsFunc(m.policies, func(p networkingv1.NetworkPolicy) bool {
		return selects(&p.Spec.PodSelector, pods) && len(p.Spec.PolicyTypes) == 2
	}) {
		found = append(found, "no network policy holds for it")
	}
	budget := slices.IndexFunc(m.budgets, func(b policyv1.PodDisruptionBudget) bool { return selects(b.Spec.Selector, pods) })
	if budget < 0 {
		found = append(found, "no disruption budget holds for it")
	} else if most := m.budgets[budget].Spec.MaxUnavailable; most == nil || most.IntValue() < 1 || *d.Spec.Replicas < 2 {
		found = append(found, "its budget allows no disruption, or it has one replica: a node could not be drained")
	}
	return found
}

// apiPort is the name of the port of the HTTP API.
const apiPort = "api"

// aboutAPI checks that agents reach the HTTP API, if the pods serve it, and nobody else does.
func (m manifests) aboutAPI(d appsv1.Deployment) (found []string) {
	pod, pods := d.Spec.Template.Spec, d.Spec.Template.Labels
	if !hasPort(pod.Containers[0], apiPort) {
		return nil
	}
	if !slices.ContainsFunc(m.services, func(s corev1.Service) bool {
		p := s.Spec.Ports[0]
		return p.Name == apiPort && p.TargetPort.String() == apiPort && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pods))
	}) {
		found = append(found, "no service leads to its API")
	}
	if !slices.ContainsFunc(m.policies, func(p networkingv1.NetworkPolicy) bool {
		return selects(&p.Spec.PodSelector, pods) && slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
			return len(r.From) > 0 && len(r.Ports) == 1 && r.Ports[0].Port.String() == apiPort
		})
	}) {
		found = append(found, "no network policy lets agents in, and nobody else")
	}
	if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "tokens" && v.Secret != nil }) {
		found = append(found, "its tokens are in no secret")
	}
	return found
}

// aboutIdentity checks that the pods connect over TLS with the identity of their part, from its
// secret.
func aboutIdentity(d appsv1.Deployment) (found []string) {
	pod, c := d.Spec.Template.Spec, d.Spec.Template.Spec.Containers[0]
	part := d.Spec.Template.Labels["app.kubernetes.io/component"]
	if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.Name == "identity" && v.Secret != nil && v.Secret.SecretName == "toolfleet-"+part+"-identity"
	}) || !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == "identity" && m.MountPath == path.Dir(env(c, "NATS_NKEY")) && m.MountPath == path.Dir(env(c, "NATS_CA"))
	}) {
		found = append(found, "does not have the identity of its part")
	}
	if prefix := env(c, "TOOLFLEET_NATS_INBOX_PREFIX"); prefix != "_INBOX."+part || !strings.HasPrefix(env(c, "NATS_URL"), "tls://") {
		found = append(found, "connects without TLS, or hears its answers at "+prefix)
	}
	return found
}

// podSecurity checks with the API server's own code that the pods satisfy the restricted standard.
func podSecurity(d appsv1.Deployment) (found []string) {
	evaluator, err := pspolicy.NewEvaluator(pspolicy.DefaultChecks(), nil)
	if err != nil {
		return []string{err.Error()}
	}
	level := psapi.LevelVersion{Level: psapi.LevelRestricted, Version: psapi.LatestVersion()}
	for _, r := range evaluator.EvaluatePod(level, &d.Spec.Template.ObjectMeta, &d.Spec.Template.Spec) {
		if !r.Allowed {
			found = append(found, r.ForbiddenReason+": "+r.ForbiddenDetail)
		}
	}
	return found
}

// config returns the config map that a pod mounts.
func (m manifests) config(pod corev1.PodSpec) (corev1.ConfigMap, bool) {
	for _, v := range pod.Volumes {
		for _, c := range m.configs {
			if v.ConfigMap != nil && v.ConfigMap.Name == c.Name {
				return c, true
			}
		}
	}
	return corev1.ConfigMap{}, false
}

func selects(s *metav1.LabelSelector, pods map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(pods))
}

func hasPort(c corev1.Container, name string) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

func env(c corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}
