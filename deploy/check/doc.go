// Package check tests what this repository ships for running toolfleet: docker-compose.yml, the
// Dockerfile, the NATS settings and the kustomize base. Each is read by the library that reads it in
// real life, strictly, then held to a few rules of ours; and each rule is shown to refuse a copy that
// breaks it.
//
// It is a module of its own so that users of toolfleet do not download Kubernetes.
package check
