"""The name of a tool call's effect: the same for whoever runs the call again, and for nobody else.

Owns that it can travel: it goes into headers and rows, and a call's id is whatever a provider says.
"""

import re
from hashlib import sha256
from typing import Final

from chatd.domain.ports import ToolContext

_PLAIN: Final = re.compile(r"[!-~]([ -~]{0,398}[!-~])?")
"""What a header and an agent have always taken: whoever takes a call over may be another version,
and must come to the same name."""


def call_key(context: ToolContext) -> str:
    """After an edit a model may use a call's id again, so the history at which it was called is
    part of the name."""
    return f"{context.chat.id}:{context.fence.history_version}:{_travelling(context.call_id)}"


def _travelling(call_id: str) -> str:
    """As it is, if every header takes it; else something as good."""
    if _PLAIN.fullmatch(call_id):
        return call_id
    return f"sha256:{sha256(call_id.encode(errors='surrogatepass')).hexdigest()}"
