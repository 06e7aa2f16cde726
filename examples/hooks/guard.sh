#!/bin/bash
# A gate before Bash: no command may touch what is kept secret, and sudo is for people to allow.
# Reads the call from stdin, answers by its exit status or in JSON. Needs jq.
set -eu

command=$(jq -r '.tool_input.command // empty')

secret='(^|[^[:alnum:]_.-])(\.env|\.ssh|secrets)([^[:alnum:]_-]|$)'
if [[ $command =~ $secret ]]; then # no program of its own: one that is missing in a condition is a no
  echo "Secrets are off limits here. Use the variables that are already set." >&2
  exit 2
fi

root='(^|[;&|[:space:]])sudo[[:space:]]'
if [[ $command =~ $root ]]; then
  jq -n '{hookSpecificOutput: {
    hookEventName: "PreToolUse",
    permissionDecision: "ask",
    permissionDecisionReason: "it runs as root"
  }}'
fi
