package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Tools returns the definitions of the tools that the agent may call, for the requests to its
// model. It takes at most 10 s and does not retry. The error is [ErrNoFleet] or a
// *messages.Refusal.
func (c *Client) Tools(ctx context.Context, want messages.GetTools) (messages.ToolList, error) {
	list, err := request[messages.ToolList](ctx, c, c.names.OfTenant(wire.VerbTools, c.tenant), rawjson.MustMarshal(want))
	switch {
	case err != nil:
	case list.Error != nil:
		err = list.Error
	case list.Tools == nil:
		err = errors.New("the answer holds no tools")
	default:
		return list, nil
	}
	return list, fmt.Errorf("list tools: %w", err)
}
