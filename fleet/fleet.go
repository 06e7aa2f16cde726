// Package fleet says where a fleet is and how to connect to it. Agents ([client.Connect]) and
// workers written in Go share these options.
//
// [client.Connect]: https://pkg.go.dev/github.com/toolfleet/toolfleet/client#Connect
package fleet

// Options say how to connect to the NATS server of a fleet. The zero value connects to a server on
// this machine without credentials.
type Options struct {
	// URL is the server's address. Several are separated by commas. Default
	// nats://127.0.0.1:4222.
	URL string
	// Name appears in the server's list of connections. Default: the kind of the program.
	Name string
	// Prefix is the first token of every subject of the fleet. Default "toolfleet".
	Prefix string
	// InboxPrefix is the beginning of the subjects on which answers arrive. Set it for a
	// user that may not subscribe everywhere. Default _INBOX.
	InboxPrefix string

	// Creds is the path of a NATS credentials file. NKey is the path of the seed of an nkey.
	Creds, NKey string
	// User and Password, or Token, are for servers that ask for them.
	User, Password, Token string
	// TLSCA is the path of the certificates with which the server's certificate is checked.
	// Default: those of the system. TLSCert and TLSKey are the paths of the program's own
	// certificate and key.
	TLSCA, TLSCert, TLSKey string
}
