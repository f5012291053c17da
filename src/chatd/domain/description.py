"""Descriptions and examples of fields that clients see. The OpenAPI document shows them."""

from typing import Final

from msgspec import Meta

CHAT_ID: Final = "0193c5a0-7d1e-7b2f-9a64-2f4e9b7c6d12"
CHILD_CHAT_ID: Final = "0193c5a3-11f0-7c44-8d20-6a5e0c9b1f37"
USER_ID: Final = "0192aa10-3f5c-7e01-b6c1-9d8e7f6a5b4c"
PROJECT_ID: Final = "0b7f1d52-6f0e-4a6e-9c0c-2c2f3c9a7b11"
NOTE_ID: Final = "4c9a6f2e-1d3b-4e8f-a5c7-9b8d7e6f5a4b"
MODEL_ID: Final = "5f0c2b1e-8a7d-5c3e-9b4f-1d2e3f4a5b6c"
PROVIDER_ID: Final = "7a1d9c3e-2b4f-5e6a-8c7d-0f1e2d3c4b5a"
WORKSPACE_ID: Final = "0193c5a1-02b7-7f3d-a1c5-8e9f0a1b2c3d"
BUILD_ID: Final = "0193c5a1-02b9-7a10-9f6e-5d4c3b2a1908"
AGENT_ID: Final = "0193c5a1-0c44-7d52-8b3a-7e6f5d4c3b2a"
TEMPLATE_ID: Final = "3b9e1f6a-5c2d-5d8e-a7f4-6c5b4a3d2e1f"
VERSION_ID: Final = "9d4e7c2b-1a3f-5b6c-8e0d-2f1a3c5e7b9d"
FILE_ID: Final = "0193c5a4-6f21-7be0-9c13-4d5e6f708192"
MCP_SERVER_ID: Final = "0193c5b0-4e2a-7d91-b0c3-6f7a8b9c0d1e"
RUNNER_ID: Final = "8f3b1c9a5d7e4260"
RUNNER_TOKEN_ID: Final = "0193c5b3-1b7c-7a55-8e10-2c3d4e5f6071"
CREATED_AT: Final = "2026-11-16T21:30:00Z"
UPDATED_AT: Final = "2026-11-16T21:34:12Z"
STREAM_CURSOR: Final = "12-3f9a0c"
WAITS_FOR: Final = (
    "The workspace is on the machine laptop, which is not connected since 2026-11-16 21:33:02 UTC."
)
"""Ids and times of the examples: the same thing has the same id in all of them."""

INTERNAL: Final = Meta(extra_json_schema={"x-internal": True})
"""Marks a field that is stored but never sent: the OpenAPI document leaves it out."""


def describe(text: str, *examples: object) -> Meta:
    """A field of another described type needs no example of its own."""
    return Meta(description=text, examples=list(examples) or None)
