package egress

import (
	"io"
	"log"
)

// silent drops what the proxy of net/http would log, because those lines quote what a host
// sent.
var silent = log.New(io.Discard, "", 0)
