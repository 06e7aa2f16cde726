// Package natsfiles embeds the files of this folder. They configure a NATS server in which
// each part of toolfleet has an identity of its own. Variables in the files stand for the
// public keys of the identities. Package identities copies the files and replaces these
// variables by keys.
package natsfiles

import "embed"

// Files holds server.conf, nats.conf, identities.conf, and the files that identities.conf
// includes.
//
//go:embed *.conf permissions users tenants
var Files embed.FS
