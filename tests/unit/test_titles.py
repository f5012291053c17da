"""Generated titles: which chats need one, the request, which replies are accepted."""

import pytest

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import FilePart, FileReferencePart, Part
from chatd.domain.model.protocol import ModelRequest, PromptText, ProviderFault
from chatd.domain.prompt.prompt_files import ResolvedFile
from chatd.domain.prompt.titles import (
    CHEAP_TITLE_MODELS,
    DEFAULT_TITLE,
    LAST_TURNS,
    MAX_EXCERPT_CHARS,
    MAX_EXCERPT_MESSAGE_CHARS,
    MAX_GENERATED_TITLE_CHARS,
    OMITTED_TURNS_MARK,
    TITLE_SCHEMA,
    TITLE_TIMEOUT_S,
    TitleModel,
    TurnExcerpt,
    chat_excerpt,
    fallback_title,
    list_title_models,
    list_turns,
    needs_title,
    read_title,
    retitle_request,
    title_input,
    title_request,
    without_temperature,
)
from chatd.domain.text import parse_json
from tests.support.factories import call, message, result, text

PASTE = ResolvedFile(
    media_type="text/plain", data=b"A long story.", name="pasted-text-2026-03-27-09-00-00.txt"
)


# Before the request


@pytest.mark.covers("titles-4")
@pytest.mark.parametrize(
    ("message_text", "title"),
    [
        ("Fix the login page", "Fix the login page"),
        ("one two three four five six", "one two three four five six"),
        ("one two three four five six seven", "one two three four five six…"),
        ("  spread \n over\tlines  ", "spread over lines"),
        ("", DEFAULT_TITLE),
        (" \n ", DEFAULT_TITLE),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("hello *there*", "hello there"),
        ("# Fix __this one__\n\n- now", "Fix this one now"),
        ("***", "***"),
    ],
)
def test_the_fallback_title_is_the_first_words_of_the_message(
    message_text: str, title: str
) -> None:
    assert fallback_title(message_text) == title
    assert len(fallback_title(message_text)) <= MAX_GENERATED_TITLE_CHARS


@pytest.mark.covers("titles-4")
@pytest.mark.parametrize(
    ("content", "message_text"),
    [
        ([text(" Look "), text("here ")], "Look here"),
        ([text("Look"), FilePart(media_type="text/plain", file_id="p")], "Look"),
        ([FilePart(media_type="text/plain", file_id="p")], "A long story."),
        ([text(" "), FilePart(media_type="text/plain", file_id="p")], "A long story."),
        ([FilePart(media_type="image/png", file_id="i")], ""),
        ([FilePart(media_type="image/png", file_id="gone")], ""),
        ([FileReferencePart(file_name="a.py", start_line=1, end_line=2, content="x")], "a.py"),
        ([text("x" * 9000)], "x" * 4000),
        ([], ""),
    ],
)
def test_the_title_input_is_the_typed_or_pasted_text(
    content: list[Part], message_text: str
) -> None:
    files = {"p": PASTE, "i": ResolvedFile(media_type="image/png", data=b"x", name="i.png")}
    assert title_input(content, files) == message_text


FIRST = message(2, "user", text("Fix it"))
SYSTEM = message(1, "system", text("Be kind."), visibility="model")
HIDDEN = message(3, "user", text("context"), visibility="model")


@pytest.mark.covers("titles-5")
@pytest.mark.parametrize(
    ("rows", "title"),
    [
        ([FIRST], ""),
        ([SYSTEM, FIRST, HIDDEN], "Fix it"),
        ([FIRST, message(3, "user", text("gone"), deleted=True)], "Fix it"),
        ([FIRST], DEFAULT_TITLE),
    ],
)
def test_a_chat_with_one_message_and_a_default_title_needs_a_title(
    rows: list[Message], title: str
) -> None:
    assert needs_title(rows, title, "Fix it")


@pytest.mark.covers("titles-5")
@pytest.mark.parametrize(
    ("rows", "title", "message_text"),
    [
        ([FIRST], "My own name", "Fix it"),
        ([FIRST, message(3, "user", text("more"))], "", "Fix it"),
        ([FIRST, message(3, "assistant", text("Done."))], "", "Fix it"),
        ([FIRST, message(3, "tool", result("a"))], "", "Fix it"),
        ([SYSTEM], "", "Fix it"),
        ([FIRST], "", " "),
    ],
)
def test_any_other_chat_needs_no_title(rows: list[Message], title: str, message_text: str) -> None:
    assert not needs_title(rows, title, message_text)


# Models


CHAT_MODEL = TitleModel(provider="my-gateway", model="big")


@pytest.mark.covers("titles-2")
def test_cheap_models_are_tried_in_order_and_the_chats_own_last() -> None:
    usable = {"vercel", "anthropic", "google"}
    assert [c.provider for c in list_title_models(usable, CHAT_MODEL)] == [
        "anthropic",
        "google",
        "vercel",
        "my-gateway",
    ]
    assert [c.provider for c in CHEAP_TITLE_MODELS] == [
        "anthropic",
        "openai",
        "google",
        "azure",
        "bedrock",
        "openrouter",
        "vercel",
    ]


def test_the_chats_model_is_tried_once() -> None:
    assert list_title_models({"anthropic"}, CHEAP_TITLE_MODELS[0]) == (CHEAP_TITLE_MODELS[0],)


@pytest.mark.covers("titles-2")
def test_a_chosen_title_model_is_the_only_one_tried() -> None:
    chosen = TitleModel(provider="private", model="p")
    assert list_title_models({"anthropic", "openai"}, CHAT_MODEL, chosen) == (chosen,)


# The request


def prompt_texts(request: ModelRequest) -> list[str]:
    return [p.text for m in request.messages for p in m.parts if isinstance(p, PromptText)]


@pytest.mark.covers("titles-2")
def test_the_request_asks_for_a_short_title_and_not_for_an_answer() -> None:
    request = title_request("m", "Why is the sky blue?")
    instruction, message_text = prompt_texts(request)
    for asked_for in ("2 to 8 words", "language", "identifiers", "Do not answer"):
        assert asked_for in instruction
    assert message_text == "<chat>\nWhy is the sky blue?\n</chat>"
    assert (request.max_output_tokens, request.temperature) == (256, 0.0)
    assert request.reasoning_effort == "none"
    assert request.output_schema is TITLE_SCHEMA
    assert parse_json(TITLE_SCHEMA) == {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    }
    assert TITLE_TIMEOUT_S == 30


def test_a_retitle_request_has_an_excerpt_of_the_chat() -> None:
    instruction, message_text = prompt_texts(retitle_request("m", "User: hi"))
    assert "excerpted below" in instruction
    assert "begins with" not in instruction
    assert message_text == "<chat>\nUser: hi\n</chat>"


@pytest.mark.covers("titles-6")
@pytest.mark.parametrize(
    ("fault", "again"),
    [
        (ProviderFault(message="'temperature' is not supported", status_code=400), "yes"),
        (ProviderFault(message="status 400", status_code=400, body="Temperature: bad"), "yes"),
        (ProviderFault(message="Reasoning is mandatory for this model", status_code=400), "yes"),
        (ProviderFault(message="status 422", status_code=422, body="reasoning_effort"), "yes"),
        (ProviderFault(message="bad schema", status_code=400), "no"),
        (ProviderFault(message="temperature", status_code=500), "no"),
        (ProviderFault(message="temperature"), "no"),
    ],
)
def test_a_rejected_temperature_is_left_out_of_the_next_request(
    fault: ProviderFault, again: str
) -> None:
    request = title_request("m", "hi")
    retried = without_temperature(request, fault)
    if again == "no":
        assert retried is None
        return
    assert retried is not None
    assert (retried.temperature, retried.reasoning_effort) == (None, None)
    assert without_temperature(retried, fault) is None


# The reply


@pytest.mark.covers("titles-3")
@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('{"title":"Fix the login page"}', "Fix the login page"),
        (' {"title": " \\"Fix\\n the  page\\" "} ', "Fix the page"),
        ('"Fix the page"', "Fix the page"),
        ("Fix the page", "Fix the page"),
        ("'Fix the page.'", "Fix the page"),
        ("\u201cFix the page\u201d", "Fix the page"),
        ("`main.py` crash", "main.py crash"),
        ("There*", "There*"),
        ("*There*", "There"),
        ("**Fix** the _login page_ ~~now~~", "Fix the login page now"),
        ('{"title": "**\\"Fix the page\\"**"}', "Fix the page"),
        ("## Fix the page", "Fix the page"),
        ("1. Fix the page", "Fix the page"),
        ("> Fix the page", "Fix the page"),
        ("Fix [the page](https://x.y/z)", "Fix the page"),
        ("See <https://x.y/z>", "See https://x.y/z"),
        ("Why __init__.py and snake_case", "Why __init__.py and snake_case"),
        ("2 * 3 * 4 and *.py", "2 * 3 * 4 and *.py"),
        ("#21 in C#", "#21 in C#"),
        ("***", None),
        ('"Fix the page".', "Fix the page"),
        ('"', None),
        ("one two three four five six seven eight", "one two three four five six seven eight"),
        ("one two three four five six seven eight nine", None),
        ('{"title":""}', None),
        ('{"title":3}', None),
        ('{"name":"x"}', None),
        ("[]", None),
        ("", None),
        ('""', None),
        ("x" * 100, "x" * 80),
        ("\u4fee\u590d\u767b\u5f55\u9875\u9762", "\u4fee\u590d\u767b\u5f55\u9875\u9762"),
    ],
)
def test_a_title_is_cleaned_or_rejected(answer: str, title: str | None) -> None:
    assert read_title(answer) == title


# Excerpts


def turn(first_id: int, message_text: str, answered: str | None) -> list[Message]:
    rows = [message(first_id, "user", text(message_text))]
    if answered is not None:
        rows.append(message(first_id + 1, "assistant", text("Working."), call("a")))
        rows.append(message(first_id + 2, "tool", result("a")))
        rows.append(message(first_id + 3, "assistant", text(answered)))
    return rows


@pytest.mark.covers("titles-1")
def test_a_turn_excerpt_has_the_user_message_and_the_last_answer() -> None:
    history = [
        message(1, "system", text("Be kind."), visibility="model"),
        *turn(2, "One?", "Yes."),
        message(6, "user", text("summary"), visibility="model", compressed=True),
        message(7, "assistant", call("s"), visibility="user", compressed=True),
        message(8, "user", text("gone"), deleted=True),
        *turn(9, "Two?", None),
        message(10, "user", FilePart(media_type="image/png")),
    ]
    assert list_turns(history) == [
        TurnExcerpt(user="One?", answer="Yes."),
        TurnExcerpt(user="Two?"),
    ]


@pytest.mark.covers("titles-1")
def test_an_excerpt_has_the_first_and_last_turns_and_marks_omitted_ones() -> None:
    history = [row for index in range(6) for row in turn(index * 4 + 1, f"q{index}", f"a{index}")]
    assert chat_excerpt(history).split("\n\n") == [
        "User: q0\nAssistant: a0",
        OMITTED_TURNS_MARK,
        *(f"User: q{index}\nAssistant: a{index}" for index in (3, 4, 5)),
    ]


@pytest.mark.parametrize("count", [0, 1, LAST_TURNS + 1])
def test_an_excerpt_of_a_short_chat_has_no_mark(count: int) -> None:
    history = [row for index in range(count) for row in turn(index * 4 + 1, f"q{index}", "a")]
    assert OMITTED_TURNS_MARK not in chat_excerpt(history)
    assert chat_excerpt(history).count("User: ") == count


@pytest.mark.covers("titles-1")
def test_an_excerpt_is_bounded_per_message_and_in_total() -> None:
    history = [row for index in range(4) for row in turn(index * 4 + 1, "q" * 5000, "a" * 5000)]
    excerpt = chat_excerpt(history)
    assert len(excerpt) == MAX_EXCERPT_CHARS
    assert excerpt.startswith("User: " + "q" * (MAX_EXCERPT_MESSAGE_CHARS - 1) + "…\n")
