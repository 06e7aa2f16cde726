#!/usr/bin/env python3
"""Before a call: look for an e-mail address in one spelling only. After it: no card number leaves the house."""

import json
import re
import sys

CARD = re.compile(r"\b(?:\d[ -]?){12,15}\d\b")


def before(call):
    email = call["tool_input"].get("email")
    if not isinstance(email, str) or email == email.strip().lower():
        return {}
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            # The whole input, not only what has changed.
            "updatedInput": {**call["tool_input"], "email": email.strip().lower()},
        }
    }


def after(call):
    written = json.dumps(call.get("tool_response"), ensure_ascii=False)
    redacted, found = CARD.subn("[card number]", written)
    if not found:
        return {}
    return {
        "hookSpecificOutput": {
            "hookEventName": "PostToolUse",
            "updatedToolOutput": json.loads(redacted),
            "additionalContext": f"{found} card number(s) were taken out of this output.",
        }
    }


if __name__ == "__main__":
    call = json.load(sys.stdin)
    print(json.dumps(before(call) if call["hook_event_name"] == "PreToolUse" else after(call)))
