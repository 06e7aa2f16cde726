#!/bin/bash
# A gate before Bash: no command may touch what is kept secret, and sudo is for people to allow.
# Reads the call from stdin, answers by its exit status or in JSON. Needs jq.
set -eu

command=$(jq -r '.tool_input.command // empty')

if grep -qE '(^|[^[:alnum:]_.-])(\.env|\.ssh|secrets)([^[:alnum:]_-]|$)' <<<"$command"; then
  echo "Secrets are off limits here. Use the variables that are already set." >&2
  exit 2
fi

if grep -qE '(^|[;&|[:space:]])sudo[[:space:]]' <<<"$command"; then
  jq -n '{hookSpecificOutput: {
    hookEventName: "PreToolUse",
    permissionDecision: "ask",
    permissionDecisionReason: "it runs as root"
  }}'
fi
