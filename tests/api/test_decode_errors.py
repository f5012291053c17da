"""Descriptions of invalid bodies and queries."""

import pytest

from chatd.api.request import BodySpec, read_query
from chatd.api.schemas.chats import ChatListQuery, CreateChatBody, UpdateChatBody
from chatd.api.schemas.messages import MoveQueuedBody, SendMessageBody, ToolResultsBody
from chatd.api.schemas.workspaces import NewWorkspaceBody
from chatd.domain.errors import InvalidInput
from chatd.services.models.model_bodies import ModelsQuery

CREATE, SEND, PATCH = BodySpec(CreateChatBody), BodySpec(SendMessageBody), BodySpec(UpdateChatBody)
MOVE, RESULTS, WORKSPACE = (
    BodySpec(MoveQueuedBody),
    BodySpec(ToolResultsBody),
    BodySpec(NewWorkspaceBody),
)
HELLO = '"content": [{"type": "text", "text": "hi"}]'

BODIES = [
    (CREATE, "", "body: is empty; send a JSON object"),
    (CREATE, "[]", "body: must be an object"),
    (CREATE, "{", "body: is not valid JSON: it ends too early"),
    (CREATE, '{"content": NaN}', "body: is not valid JSON: error at byte 12"),
    (
        CREATE,
        '{"content": [{"type": "text", "text": "\\ud800"}]}',
        "body: has a \\u escape of half a surrogate pair",
    ),
    (CREATE, "{}", "content: is required"),
    (CREATE, '{"content": "hi"}', "content: must be a list"),
    (CREATE, '{"content": []}', "content: must not be empty"),
    (CREATE, '{"content": [5]}', "content[0]: must be an object"),
    (
        CREATE,
        '{"content": [{"type": "song"}]}',
        "content[0].type: must be one of text, file, file-reference, command",
    ),
    (CREATE, '{"content": [{"type": "text", "text": " "}]}', "content[0].text: must not be empty"),
    (CREATE, f'{{{HELLO}, "model": 1}}', "model: must be text or null"),
    (CREATE, f'{{{HELLO}, "model_config_id": "x"}}', "model_config_id: must be a UUID"),
    (
        CREATE,
        f'{{{HELLO}, "reasoning_effort": "huge"}}',
        "reasoning_effort: must be one of none, minimal, low, medium, high, xhigh, max",
    ),
    (CREATE, f'{{{HELLO}, "labels": {{"a": 1}}}}', "labels[...]: must be text"),
    (CREATE, f'{{{HELLO}, "modle": "x"}}', "modle: is not a known field"),
    (CREATE, f'{{{HELLO}, "mode": "banana"}}', "mode: must be one of plan"),
    (
        SEND,
        f'{{{HELLO}, "busy_behavior": "shout"}}',
        "busy_behavior: must be one of queue, steer, interrupt, rollback, reject",
    ),
    (PATCH, '{"archived": "yes"}', "archived: must be true or false"),
    (PATCH, '{"pin_order": 1.5}', "pin_order: must be a whole number"),
    (PATCH, '{"pin_order": -1}', "pin_order: must be at least 0"),
    (MOVE, '{"before": "x"}', "before: must be a whole number or null"),
    (
        WORKSPACE,
        '{"template": "scratch", "name": "a--b"}',
        "name: must have letters and digits, with single - between them",
    ),
    (RESULTS, '{"results": [{"tool_call_id": 1}]}', "results[0].tool_call_id: must be text"),
]


@pytest.mark.parametrize(("takes", "body", "said"), BODIES)
def test_an_invalid_body_is_described(
    takes: BodySpec[
        CreateChatBody | SendMessageBody | UpdateChatBody | MoveQueuedBody | ToolResultsBody
    ],
    body: str,
    said: str,
) -> None:
    with pytest.raises(InvalidInput) as refused:
        takes.read(body.encode())
    assert refused.value.message == said


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=ten", "limit: must be a whole number"),
        ("limit=0", "limit: must be at least 1"),
        ("limit=201", "limit: must be at most 200"),
    ],
)
def test_an_invalid_query_is_described(query: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_query(ChatListQuery, query.encode())
    assert refused.value.message == said


def test_yes_is_not_a_boolean_in_a_query() -> None:
    with pytest.raises(InvalidInput, match="include_disabled: must be true or false"):
        read_query(ModelsQuery, b"include_disabled=yes")
