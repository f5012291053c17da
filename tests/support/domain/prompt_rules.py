"""The rules that every provider has for a conversation.

`find_problems` lists what is wrong with one; a fake provider refuses a request with problems.
Shares nothing with the code that repairs prompts.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec import UNSET

from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def find_problems(messages: Sequence[PromptMessage], *, strict_tools: bool = False) -> list[str]:
    """`strict_tools`: each provider-executed call must also have exactly one result."""
    found = [*_frame(messages), *_pairs(messages), *_ids(messages)]
    for place, message in enumerate(messages):
        found += [f"message {place}: {problem}" for problem in _content(message)]
        found += [f"message {place}: {problem}" for problem in _provider_parts(message)]
        if strict_tools:
            found += [f"message {place}: {problem}" for problem in _searches(message)]
    return found


def _frame(messages: Sequence[PromptMessage]) -> list[str]:
    roles = [message.role for message in messages]
    talk = [role for role in roles if role != "system"]
    found: list[str] = []
    if "system" in roles[len(roles) - len(talk) :]:
        found.append("a system message stands among the others")
    if not talk or talk[0] != "user":
        found.append("the first message is not the user's")
    if not talk or talk[-1] not in ("user", "tool"):
        found.append("the last message is neither the user's nor a tool's")
    for place, (one, two) in enumerate(pairwise(messages)):
        if one.role == two.role == "assistant" and not (_signed(one) or _signed(two)):
            found.append(f"message {place}: two answers in a row")
        if two.role == "tool" and not (one.role == "assistant" and _local_calls(one)):
            found.append(f"message {place + 1}: results without calls right before")
    return found


def _pairs(messages: Sequence[PromptMessage]) -> list[str]:
    found: list[str] = []
    for place, message in enumerate(messages):
        calls = [call.id for call in _local_calls(message)]
        after = messages[place + 1] if place + 1 < len(messages) else None
        given = [] if after is None or after.role != "tool" else _result_ids(after)
        if message.role == "assistant" and calls != given:
            found.append(f"message {place}: calls {calls} are followed by results {given}")
    return found


def _ids(messages: Sequence[PromptMessage]) -> list[str]:
    local = [call.id for message in messages for call in _local_calls(message)]
    theirs = {
        part.id
        for message in messages
        for part in message.parts
        if isinstance(part, PromptCall) and part.provider_executed
    }
    found = [f"the id {one!r} is not one" for one in local if not _ID.fullmatch(one)]
    found += [f"the id {one!r} is used twice" for one in set(local) if local.count(one) > 1]
    return found + [f"the id {one!r} is the provider's" for one in local if one in theirs]


def _content(message: PromptMessage) -> list[str]:
    if not message.parts:
        return ["it is empty"]
    found: list[str] = []
    for part in message.parts:
        if not _may_stand(part, message):
            found.append(f"a {type(part).__name__} cannot be in a message of {message.role}")
        if _is_blank(part):
            found.append(f"a {type(part).__name__} is blank")
        if any("\0" in text or not _encodable(text) for text in _texts(part)):
            found.append(f"a {type(part).__name__} has a character that cannot be sent")
        if isinstance(part, PromptCall) and not _is_object(part.input):
            found.append("the input of a call is not an object")
    return found


def _may_stand(part: PromptPart, message: PromptMessage) -> bool:
    match message.role:
        case "system":
            return isinstance(part, PromptText)
        case "user":
            return isinstance(part, PromptText | PromptFile)
        case "tool":
            return isinstance(part, PromptResult) and not part.provider_executed
        case "assistant":
            if isinstance(part, PromptResult):
                return part.provider_executed
            return not isinstance(part, PromptFile)


def _is_blank(part: PromptPart) -> bool:
    match part:
        case PromptText():
            return not part.text.strip()
        case PromptReasoning():
            return not part.text.strip() and part.provider_metadata is UNSET
        case PromptFile():
            return not part.data
        case PromptCall():
            return not part.name.strip()
        case PromptResult():
            blank = not part.text.strip() and part.media is None
            return not part.provider_executed and (blank or not part.name.strip())


def _texts(part: PromptPart) -> list[str]:
    match part:
        case PromptReasoning() if part.provider_metadata is not UNSET:
            return []  # vendor data, sent back unchanged
        case PromptText() | PromptReasoning() | PromptResult():
            return [part.text]
        case PromptCall():
            return [bytes(part.input).decode().replace("\\u0000", "\0")]
        case PromptFile():
            return [part.name or ""]


def _provider_parts(message: PromptMessage) -> list[str]:
    called: set[str] = set()
    found: list[str] = []
    for part in message.parts:
        if isinstance(part, PromptCall) and part.provider_executed:
            called.add(part.id)
        if isinstance(part, PromptResult) and part.provider_executed and part.id not in called:
            found.append(f"the provider's result {part.id!r} comes before its call")
    return found


def _searches(message: PromptMessage) -> list[str]:
    theirs = [
        part
        for part in message.parts
        if isinstance(part, PromptCall | PromptResult) and part.provider_executed
    ]
    found: list[str] = []
    for one in {part.id for part in theirs}:
        kinds = [type(part) for part in theirs if part.id == one]
        if kinds != [PromptCall, PromptResult]:
            found.append(f"the provider's call {one!r} is not one call and one result")
    return found + [
        f"{part.name!r} is not a tool of the provider"
        for part in theirs
        if part.name != "web_search"
    ]


def _signed(message: PromptMessage) -> bool:
    return any(
        isinstance(part, PromptReasoning) and part.provider_metadata is not UNSET
        for part in message.parts
    )


def _local_calls(message: PromptMessage) -> list[PromptCall]:
    return [p for p in message.parts if isinstance(p, PromptCall) and not p.provider_executed]


def _result_ids(message: PromptMessage) -> list[str]:
    return [part.id for part in message.parts if isinstance(part, PromptResult)]


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_object(raw: msgspec.Raw) -> bool:
    return isinstance(msgspec.json.decode(raw), dict)
