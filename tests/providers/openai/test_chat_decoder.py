"""Decoding Chat Completions streams of different servers."""

import msgspec
import pytest
from msgspec import UNSET

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.parts import Part, ReasoningPart, SourcePart, TextPart, ToolCallPart
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import (
    Finished,
    SourceFound,
    StreamFailed,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDone,
    ToolCallStart,
)
from chatd.providers.openai import chat_wire
from chatd.providers.openai.chat_answer import (
    GEMINI_TAGS,
    MAX_DECODED_CALLS,
    THINK_TAGS,
    ChatAnswerBuilder,
    ThoughtSplitter,
)
from chatd.providers.openai.chat_decoder import ChatDecoder, openrouter_cost_micros
from chatd.providers.openai.chat_wire import unpack_metadata
from chatd.providers.tool_schema import ToolNames
from tests.support.providers.openai_chat import DONE, chunk, stream
from tests.support.providers.recorded import (
    CHAT,
    ORIGIN,
    chat_decoder,
    ending,
    only,
    tokens,
    tool_call,
    without_usage,
)
from tests.support.providers.stream_reader import answer_of, read_whole

read, answer, decoded_parts, finished = CHAT.read, CHAT.answer, CHAT.parts, CHAT.finished
decode, decode_end, failed = CHAT.decode, CHAT.decode_end, CHAT.failed


# Cuts


@pytest.mark.parametrize("name", ["text", "tools", "deepseek", "openrouter", "gemini"])
def test_a_stream_without_a_finish_reason_is_incomplete(name: str) -> None:
    data = stream(name)
    end = next(
        data.rfind(b"data:", 0, at)
        for reason in (b'"finish_reason":"stop"', b'"finish_reason":"tool_calls"')
        if (at := data.find(reason)) >= 0
    )
    for at in range(0, end, 5):
        fault = failed(data[:at])
        assert fault.incomplete
        assert classify_fault(fault).retryable


def test_a_finish_reason_completes_the_answer() -> None:
    assert finished("no_done").usage.total_tokens == 7
    # Also without the blank line after the last event.
    assert isinstance(decode(stream("no_done").rstrip(b"\n"))[-1], Finished)


def test_done_without_a_finish_reason_is_incomplete() -> None:
    assert failed(chunk(content="Hi") + DONE).incomplete


# Content


def test_text_arrives_in_deltas() -> None:
    assert without_usage(read("text")) == [
        TextStart(id="1"),
        TextDelta(id="1", delta="The "),
        TextDelta(id="1", delta="sky is"),
        TextDelta(id="1", delta=" blue, café ☕"),
        TextEnd(id="1"),
        finished("text"),
    ]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "tools",
            [
                TextPart(text="Looking."),
                tool_call("call_aaa111", "read_file", '{"path":"a.txt"}'),
                tool_call("call_bbb222", "show.time", "{}"),
            ],
        ),
        (
            "deepseek",
            [
                ReasoningPart(text="The user asks for the time."),
                TextPart(text="Let me see."),
                tool_call("call_ds_1", "show.time", '{"zone":"UTC"}'),
            ],
        ),
        (
            "openrouter",
            [
                ReasoningPart(text="I should search."),
                SourcePart(url="https://example.org/towers", title="Towers"),
                TextPart(text="Found it: the tower."),
                ReasoningPart(text=""),
                tool_call("toolu_9", "read_file", '{"path":"t"}'),
            ],
        ),
        (
            "gemini",
            [
                ReasoningPart(text="**Calculating**\n\nStep one. More thinking."),
                TextPart(text="The answer needs a look."),
                tool_call("jm4owj31", "read_file", '{"path":"a.txt"}'),
                tool_call("tool-call-1-abc", "show.time", "{}"),
            ],
        ),
        (
            "gemini_vertex",
            [
                ReasoningPart(text="**Exploring**\n\nUntagged thought."),
                TextPart(text="Plain answer with a < b and <thoughts>."),
            ],
        ),
        (
            "ollama",
            [
                ReasoningPart(text="Two calls then."),
                tool_call("call_x1", "read_file", '{"path":"a"}'),
                tool_call("call_x2", "read_file", '{"path":"b"}'),
            ],
        ),
        ("vllm", [ReasoningPart(text="Greet."), TextPart(text="Hello!")]),
        ("mistral", [ReasoningPart(text="Hmm, so."), TextPart(text="Bonjour !")]),
        ("llamacpp", [TextPart(text="Hi there")]),
        ("refusal", [TextPart(text="I'm sorry, I cannot help.")]),
        ("half_character", [TextPart(text="a smile: 😀 and half: \ufffd!")]),
    ],
)
def test_answers_of_different_servers(name: str, parts: list[Part]) -> None:
    assert decoded_parts(name) == parts


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("text", "stop"),
        ("tools", "tool-calls"),
        ("gemini", "tool-calls"),
        ("ollama", "tool-calls"),
        ("length", "length"),
        ("refusal", "refusal"),
        ("azure_filter", "content-filter"),
    ],
)
def test_finish_reasons_are_converted(name: str, reason: str) -> None:
    assert finished(name).reason == reason


def test_each_source_is_reported_once() -> None:
    cited = chunk(annotations=[{"type": "url_citation", "url_citation": {"url": "https://a.b"}}])
    events = decode(cited + cited + chunk("stop", content="Hi") + DONE)
    assert only(SourceFound, events) == [SourceFound(url="https://a.b")]


def test_an_unknown_finish_reason_is_other() -> None:
    for word, reason in (("galaxy_brain", "other"), ("eos", "stop"), ("model_length", "length")):
        end = decode_end(chunk(content="Hi") + chunk(word) + DONE)
        assert end.reason == reason


def test_a_refusal_has_the_words_of_the_model() -> None:
    assert finished("refusal").explanation == "I'm sorry, I cannot help."
    assert finished("text").explanation is None


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("text", tokens(56, 14, 134, cache_read_tokens=64)),
        ("deepseek", tokens(72, 50, 250, reasoning_tokens=30, cache_read_tokens=128)),
        # Google counts thoughts only in the total.
        ("gemini", tokens(16, 611, 627, reasoning_tokens=602)),
        # The last usage counts.
        ("vllm", tokens(12, 3, 15)),
        ("no_ids", TokenUsage()),
    ],
)
def test_tokens_are_counted(name: str, usage: TokenUsage) -> None:
    assert finished(name).usage == usage


@pytest.mark.covers("providers-10")
def test_the_last_reported_usage_counts() -> None:
    counted = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
    empty = b'data: {"choices":[],"usage":null}\n\n'
    end = decode_end(chunk("stop", content="Hi") + counted + empty + DONE)
    assert end.usage == tokens(3, 4, 7)


@pytest.mark.covers("providers-10")
def test_usage_in_a_choice_counts() -> None:
    data = b'data: {"choices":[{"finish_reason":"stop","usage":{"prompt_tokens":5}}]}\n\n'
    end = decode_end(chunk(content="Hi") + data + DONE)
    assert end.usage.input_tokens == 5


def test_deepseek_reports_cached_tokens_in_its_own_field() -> None:
    counted = b'data: {"usage":{"prompt_tokens":9,"prompt_cache_hit_tokens":4}}\n\n'
    end = decode_end(chunk("stop", content="Hi") + counted + DONE)
    assert (end.usage.input_tokens, end.usage.cache_read_tokens) == (5, 4)


# Ids


@pytest.mark.covers("providers-10")
def test_calls_without_ids_get_ids_unique_to_their_step() -> None:
    assert decoded_parts("no_ids") == [
        tool_call("tool-call-0-abc", "show.time", "{}"),
        tool_call("tool-call-1-abc", "read_file", '{"path":"b"}'),
    ]
    plain = answer_of(read_whole(lambda: chat_decoder(salt=""), stream("no_ids")))
    expected = ["tool-call-0", "tool-call-1"]
    assert [p.tool_call_id for p in plain.content if isinstance(p, ToolCallPart)] == expected


@pytest.mark.covers("providers-10")
def test_calls_of_one_index_without_ids_are_separated_by_names() -> None:
    begun = [
        {"index": 0, "id": "", "function": {"name": name, "arguments": said}}
        for name, said in (("read_file", '{"a":'), ("read_file", "{}}"), ("show_time", "{}"))
    ]
    data = b"".join(chunk(tool_calls=[piece]) for piece in begun) + chunk("tool_calls") + DONE
    calls = only(ToolCallDone, decode(data))
    expected = [("read_file", '{"a":{}}'), ("show.time", "{}")]
    assert [(done.name, done.input) for done in calls] == expected
    assert len({done.id for done in calls}) == 2


def test_an_id_of_history_is_not_reused() -> None:
    again = read_whole(
        lambda: chat_decoder(taken=["call_aaa111", "call_bbb222", "call_bbb222-abc"]),
        stream("tools"),
    )
    expected = ["call_aaa111-abc", "call_bbb222-abc-2"]
    assert [e.id for e in again if isinstance(e, ToolCallDone)] == expected


# Metadata


def test_reasoning_stores_its_field() -> None:
    [thought] = only(ReasoningPart, answer("deepseek").content)
    kept = unpack_metadata(thought.provider_metadata, ORIGIN)
    assert kept is not None
    assert kept.field == "reasoning_content"
    assert unpack_metadata(thought.provider_metadata, "another server") is None


def test_pieces_of_reasoning_details_are_merged() -> None:
    text = {"text": "I should search.", "signature": "EqQBCkYIBxgCKkD"}
    sealed = {"data": "c2VhbGVk", "id": "toolu_9"}
    *_, carrier = only(ReasoningPart, answer("openrouter").content)
    kept = unpack_metadata(carrier.provider_metadata, ORIGIN)
    assert kept is not None
    assert [msgspec.json.decode(detail) for detail in kept.details] == [
        {"type": "reasoning.text", **text, "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.encrypted", **sealed, "format": "anthropic-claude-v1", "index": 1},
    ]


def test_a_later_piece_without_a_signature_keeps_it() -> None:
    pieces = [
        {"type": "reasoning.text", "text": "a", "signature": "s", "index": 0},
        {"type": "reasoning.text", "text": "b", "signature": None, "index": 0},
    ]
    data = b"".join(chunk(reasoning_details=[piece]) for piece in pieces) + chunk("stop") + DONE
    *_, carrier = answer_of(decode(data)).content
    assert isinstance(carrier, ReasoningPart)
    kept = unpack_metadata(carrier.provider_metadata, ORIGIN)
    assert kept is not None
    assert [msgspec.json.decode(detail) for detail in kept.details] == [
        {"type": "reasoning.text", "text": "ab", "signature": "s", "index": 0}
    ]


def test_two_encrypted_details_stay_separate() -> None:
    sealed = [{"type": "reasoning.encrypted", "data": data, "index": 0} for data in ("x", "y")]
    data = chunk(reasoning_details=sealed) + chunk("stop", content="Hi") + DONE
    [_, carrier] = answer_of(decode(data)).content
    assert isinstance(carrier, ReasoningPart)
    kept = unpack_metadata(carrier.provider_metadata, ORIGIN)
    assert kept is not None
    assert len(kept.details) == 2


def test_a_signature_is_stored_with_its_call() -> None:
    first, second = only(ToolCallPart, answer("gemini").content)
    kept = unpack_metadata(first.provider_metadata, ORIGIN)
    assert kept is not None
    assert msgspec.json.decode(kept.extra or b"") == {
        "google": {"thought_signature": "EjQKMgEMOdbH"}
    }
    assert second.provider_metadata is UNSET


# Thoughts within the text


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_thought_tags_are_found_wherever_they_are_cut(size: int) -> None:
    text = "<thought>a < b</thou></thought>So: </thought> is a tag."
    splitter = ThoughtSplitter(GEMINI_TAGS)
    pieces: list[tuple[bool, str]] = []
    for at in range(0, len(text), size):
        pieces += splitter.feed(text[at : at + size], marked=False)
    pieces += splitter.flush()
    assert "".join(piece for thought, piece in pieces if thought) == "a < b</thou>"
    assert "".join(piece for thought, piece in pieces if not thought) == "So: </thought> is a tag."


def test_a_tag_in_the_middle_of_an_answer_is_text() -> None:
    splitter = ThoughtSplitter(GEMINI_TAGS)
    assert splitter.feed("Use ", marked=False) == [(False, "Use ")]
    assert splitter.feed("<thought>", marked=False) == [(False, "<thought>")]


def test_text_that_resembles_a_tag_is_kept() -> None:
    splitter = ThoughtSplitter(GEMINI_TAGS)
    assert splitter.feed("<thou", marked=False) == []
    assert splitter.flush() == [(False, "<thou")]


@pytest.mark.parametrize("size", [1, 2, 5, 80])
@pytest.mark.parametrize("tag", ["think", "mm:think"])
def test_think_tags_at_the_start_become_reasoning_to_be_sent_back(size: int, tag: str) -> None:
    text = f"\n<{tag}>a < b</{tag}>\n\nSo: <{tag}> is a tag."
    pieces = (text[at : at + size] for at in range(0, len(text), size))
    data = b"".join(chunk(content=piece) for piece in pieces) + chunk("stop") + DONE
    builder = ChatAnswerBuilder(ORIGIN, ToolNames([]), thought_tags=THINK_TAGS, replays_tags=True)
    thought, said = answer_of(read_whole(lambda: ChatDecoder(builder), data)).content
    assert isinstance(thought, ReasoningPart)
    assert thought.text == "a < b"
    kept = unpack_metadata(thought.provider_metadata, ORIGIN)
    assert kept is not None
    assert kept.field == f"<{tag}>"
    assert said == TextPart(text=f"\n\nSo: <{tag}> is a tag.")


@pytest.mark.covers("providers-13")
def test_only_google_has_thoughts_in_its_text() -> None:
    data = chunk("stop", content="<thought>plain</thought>") + DONE
    assert answer_of(decode(data)).content == (TextPart(text="<thought>plain</thought>"),)


# Failures


@pytest.mark.parametrize(
    ("name", "kind", "retryable"),
    [
        ("error", "generic", True),
        ("openrouter_error", "timeout", True),
        ("no_resources", "overloaded", True),
        ("cut", "timeout", True),
    ],
)
def test_failures_can_be_classified(name: str, kind: str, *, retryable: bool) -> None:
    classified = classify_fault(failed(stream(name)))
    assert (classified.kind, classified.retryable) == (kind, retryable)


@pytest.mark.covers("providers-11")
@pytest.mark.parametrize(
    ("data", "message", "status"),
    [
        (b'{"error":"boom"}', "boom", None),
        (b'{"error":{"message":"slow down","code":429}}', "slow down", 429),
        (b'{"error":{"message":"slow down","code":"429"}}', "slow down", 429),
        (b'{"object":"error","message":"out of memory","code":500}', "out of memory", 500),
        (b'{"object":"error","message":{"detail":"no"},"code":true}', '{"detail":"no"}', None),
        (b'{"error":{"message":["one","two"],"type":7}}', '["one","two"]', None),
        (b'{"error":["boom"]}', '["boom"]', None),
        (b'{"error":true}', "the server reported an error", None),
        (b'{"error":{}}', "the server reported an error", None),
        (b'{"choices":[{"error":{"code":502,"message":"gone"}}]}', "gone", 502),
    ],
)
def test_errors_of_different_forms_are_read(data: bytes, message: str, status: int | None) -> None:
    fault = failed(b"data: " + data + b"\n\n")
    assert (fault.message, fault.status_code) == (message, status)


def test_a_long_error_is_cut_and_keeps_its_type() -> None:
    said = b'{"error":{"message":"m","code":"429","type":"tokens","more":"%s"}}' % (b"x" * 9000)
    fault = failed(b"data: " + said + b"\n\n")
    assert (fault.status_code, fault.type) == (429, "tokens")
    assert fault.body is not None
    assert len(fault.body) == 2000


@pytest.mark.parametrize("nothing", [b"null", b"false", b'""'])
def test_an_empty_error_is_ignored(nothing: bytes) -> None:
    said = b'data: {"error":%s,"choices":[{"delta":{"content":"Hi"},"error":%s}]}\n\n'
    events = decode(said % (nothing, nothing) + chunk("stop") + DONE)
    assert answer_of(events).content == (TextPart(text="Hi"),)


def test_an_event_named_error_is_an_error() -> None:
    fault = failed(b'event: error\ndata: {"message":"out of memory"}\n\n' + chunk("stop") + DONE)
    assert fault.message == "out of memory"


def test_an_unreadable_event_is_a_retryable_failure() -> None:
    for data in (b'{"choices": 7}', b"{", b"[]", b"\xff"):
        fault = failed(b"data: " + data + b"\n\n" + chunk("stop") + DONE)
        assert fault.incomplete
        assert classify_fault(fault).retryable


def test_other_choices_are_ignored() -> None:
    other = b'data: {"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"stop"}]}\n\n'
    data = chunk(content="yes") + other + chunk("stop") + DONE
    assert answer_of(decode(data)).content == (TextPart(text="yes"),)


# Cost


@pytest.mark.parametrize(
    ("told", "micros"),
    [
        ({"cost": 0.0123456}, 12_346),
        ({"cost": 0}, 0),
        (
            {"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}},
            21_000,
        ),
        ({"cost": 0.001, "is_byok": False, "cost_details": {"upstream_inference_cost": 9}}, 1_000),
        (
            {"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": None}},
            1_000,
        ),
        ({}, None),
        ({"cost": None}, None),
        ({"cost": -1}, None),
        ({"cost": True}, None),
        ({"cost": {"total_cost": 0.1}}, None),
        ({"cost": "0.1"}, None),
    ],
)
def test_openrouter_reports_its_own_cost(told: dict[str, object], micros: int | None) -> None:
    usage = msgspec.convert({"prompt_tokens": 5, **told}, chat_wire.Usage)
    assert openrouter_cost_micros(usage) == micros


def test_the_cost_of_another_server_is_not_read() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.5}
    last = b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n"
    data = chunk(content="Hi") + chunk(finish="stop") + last + DONE
    assert CHAT.decode_end(data).usage == tokens(5, 2, 7)
    names = ToolNames([])
    decoder = ChatDecoder(ChatAnswerBuilder(ORIGIN, names), reports_cost=True)
    assert ending(Finished, decoder.feed(data)).usage.provider_cost_micros == 500_000


@pytest.mark.parametrize("ids", ["each its own", "one for all", "none"])
def test_one_event_with_a_hundred_thousand_calls_is_a_failure(ids: str) -> None:
    calls: list[dict[str, object]] = []
    for number in range(100_000):
        call: dict[str, object] = {"function": {"name": "read_file", "arguments": "{}"}}
        if ids == "one for all":
            call |= {"id": "c", "index": number}
        elif ids == "each its own":
            call |= {"id": f"c{number}"}
        calls.append(call)
    decoder = ChatDecoder(ChatAnswerBuilder("o", ToolNames(()), salt="s"))
    events = decoder.feed(chunk(tool_calls=calls))
    assert isinstance(events[-1], StreamFailed)
    assert events[-1].fault.type == "answer_too_large"
    assert sum(isinstance(event, ToolCallStart) for event in events) == MAX_DECODED_CALLS
    assert decoder.done
