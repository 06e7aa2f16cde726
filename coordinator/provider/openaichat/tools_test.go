package openaichat

import (
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/provider/export/exporttest"
)

func TestTools(t *testing.T) { exporttest.Run(t, Codec{}) }
