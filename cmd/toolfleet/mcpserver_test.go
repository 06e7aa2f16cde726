package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpTestServer is a command of the scripts: an MCP server whose tools have the names of its
// arguments. The tool look reads.
func mcpTestServer() {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	for _, name := range os.Args[1:] {
		about := &mcp.Tool{Name: name, Description: "Does " + name + ".", InputSchema: json.RawMessage(`{"type":"object"}`),
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: name == "look"}}
		server.AddTool(about, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "did " + name}}}, nil
		})
	}
	_ = server.Run(context.Background(), &mcp.StdioTransport{})
}

// mcpTestClient is a command for the test scripts. The arguments before -- are pairs of a tool
// and its input. The arguments after -- are the command of an MCP server. mcpTestClient starts
// the server, lists its tools, and makes one call for each pair.
func mcpTestClient() {
	if err := callOverStdio(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func callOverStdio(args []string) error {
	split := 0
	for args[split] != "--" {
		split++
	}
	server := exec.Command(args[split+1], args[split+2:]...)
	server.Stderr = os.Stderr
	ctx := context.Background()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: server}, nil)
	if err != nil {
		return err
	}
	list, err := c.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	for _, t := range list.Tools {
		fmt.Println("tool", t.Name, t.Annotations.ReadOnlyHint)
	}
	for i := 0; i < split; i += 2 {
		r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: args[i], Arguments: json.RawMessage(args[i+1])})
		if err != nil {
			return err
		}
		fmt.Println("result", r.IsError, r.Content[0].(*mcp.TextContent).Text)
	}
	return c.Close()
}
