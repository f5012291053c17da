"""Debug records of model calls have no secrets and a bounded size."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.answer import Answer
from chatd.domain.answer.debug_calls import (
    MAX_DEBUG_BYTES,
    OMITTED,
    REDACTED,
    build_document,
    describe_request,
    redact,
)
from chatd.domain.chat.parts import TextPart
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptText,
    ToolSpec,
)
from tests.support.debug_calls import debug_call


def asking(*texts: str, **fields: object) -> ModelRequest:
    messages = tuple(PromptMessage(role="user", parts=(PromptText(text=text),)) for text in texts)
    return msgspec.structs.replace(ModelRequest(model="m", messages=messages), **fields)


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("sk-ant-REDACTED", "sk-ant-REDACTED"),
        ("AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
        ("Authorization: Bearer abcdefghijklmnop", "abcdefghijklmnop"),
        ("https://files.example.com/a?X-Amz-Signature=deadbeef&X-Amz-Expires=60", "deadbeef"),
        ("https://user:hunter2@example.com/path", "hunter2"),
    ],
)
def test_keys_and_credentials_in_texts_are_removed(text: str, secret: str) -> None:
    call = debug_call(asking(f"use {text} please"), Answer(content=(TextPart(text=text),)))
    document = build_document(call)
    assert secret not in document.request
    assert secret not in document.response


@pytest.mark.promise("P13")
def test_values_under_the_names_of_secrets_are_removed_at_any_depth() -> None:
    found = redact(
        {
            "headers": {"Authorization": "x"},
            "list": [{"api_key": "k", "password": "p"}],
            "max_output_tokens": 5,
            "output_tokens": "five",
            "provider_metadata": {"signature": "long"},
        }
    )
    assert found == {
        "headers": {"Authorization": REDACTED},
        "list": [{"api_key": REDACTED, "password": REDACTED}],
        "max_output_tokens": 5,
        "output_tokens": "five",
        "provider_metadata": OMITTED,
    }


def test_a_request_is_described_without_contents_of_files() -> None:
    call = PromptCall(id=ToolCallId("c1"), name="run", input=Raw(b'{"a": 1}'))
    file = PromptFile(media_type="image/png", data=b"12345", name="a.png")
    tool = ToolSpec(name="run", description="Run it.", input_schema=Raw(b'{"type": "object"}'))
    request = ModelRequest(
        model="m",
        messages=(PromptMessage(role="assistant", parts=(call, file)),),
        tools=(tool,),
    )
    found = describe_request(request)
    assert found["tools"][0]["input_schema"] == {"type": "object"}
    assert found["messages"][0]["parts"] == [
        {"type": "tool_call", "id": "c1", "name": "run", "input": {"a": 1}},
        {"type": "file", "media_type": "image/png", "name": "a.png", "size_bytes": 5},
    ]


def test_a_record_over_its_limit_keeps_the_newest_messages() -> None:
    texts = [f"{number} " + "x" * 15_000 for number in range(100)]
    document = build_document(debug_call(asking(*texts), Answer(content=())))
    assert document.is_cut
    assert len(document.request) <= MAX_DEBUG_BYTES
    messages = msgspec.json.decode(document.request)["messages"]
    assert messages[0]["role"] == "omitted"
    assert messages[-1]["parts"][0]["text"].startswith("99 ")
    assert messages[0]["messages"] + len(messages) - 1 == 100


def test_one_huge_text_is_clipped() -> None:
    document = build_document(
        debug_call(asking("x" * 5_000_000), Answer(content=(TextPart(text="y" * 5_000_000),)))
    )
    assert len(document.request) + len(document.response) < MAX_DEBUG_BYTES
