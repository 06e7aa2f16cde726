// Package hook is user code that runs before or after a tool, in phases three and six.
package hook
