// Package natsfiles holds the files of this folder: the NATS server's configuration with an
// identity for each part. Package identities writes them with keys in the place of the variables.
package natsfiles

import "embed"

// Files holds nats.conf, identities.conf and what it includes.
//
//go:embed *.conf permissions users tenants
var Files embed.FS
