// Package check tests the files for running toolfleet that this repository ships:
// docker-compose.yml, the Dockerfile, the NATS settings and the kustomize base. The same library
// that reads a file in real life reads it here, strictly. Then the file is checked against a few
// rules. Each rule is also tested with a copy that breaks it.
//
// It is a module of its own, so that users of toolfleet do not download Kubernetes.
package check
