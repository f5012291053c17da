"""The rules by which the Messages API refuses a request, with its messages. One rule per function.

A rule returns the message of an `invalid_request_error`, or None. The rules are written from the
API's documentation and errors, not from our encoder.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TypeGuard

Object = Mapping[str, object]

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
SERVER_RESULTS = {"web_search_tool_result": "web_search"}
COMPUTER_BETAS = {
    "computer_20241022": "computer-use-2024-10-22",
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
}
TOOL_TYPES = {*COMPUTER_BETAS, "computer_toolset_20260801", "web_search_20250305", "custom"}
BLOCKS = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use"}
    | set(SERVER_RESULTS),
}
ADAPTIVE_ONLY = re.compile(r"opus-4-[78]|(opus|sonnet|haiku|fable|mythos)-5")
TAKES_PREFILL = re.compile(r"claude-3|claude-(opus|sonnet|haiku)-4(-[0-5])?($|-\d{8}|@)")
BOUND = re.compile(r"(fable|mythos)-5-[12]|(opus|sonnet|haiku)-5-5")
NEVER_OFF = re.compile(r"fable|mythos|opus-5-5")
TOP_FIELDS = {
    *("model", "messages", "max_tokens", "stream", "system", "tools", "tool_choice", "thinking"),
    *("temperature", "top_p", "top_k", "output_config", "metadata", "stop_sequences"),
}


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def objects(value: object) -> list[dict[str, object]]:
    return [item for item in value if is_object(item)] if is_list(value) else []


def messages(body: Object) -> list[dict[str, object]]:
    return objects(body.get("messages"))


def blocks(message: Object) -> list[dict[str, object]]:
    return objects(message.get("content"))


def every_block(body: Object) -> Iterator[tuple[str, dict[str, object]]]:
    for i, message in enumerate(messages(body)):
        for j, block in enumerate(blocks(message)):
            yield f"messages.{i}.content.{j}", block
            for k, inner in enumerate(objects(block.get("content"))):
                if block.get("type") == "tool_result":
                    yield f"messages.{i}.content.{j}.tool_result.content.{k}", inner


def top_level(body: Object, betas: set[str]) -> str | None:
    for field in ("model", "messages", "max_tokens"):
        if field not in body:
            return f"{field}: Field required"
    extra = set(body) - TOP_FIELDS
    if extra:
        return f"{min(extra)}: Extra inputs are not permitted"
    if body.get("stream") is not True:
        return "this fake only streams"
    return None if messages(body) else "messages: at least one message is required"


def is_paused(body: Object) -> bool:
    """The API continues an answer in which it has run its own tools."""
    last = messages(body)[-1]
    return last.get("role") == "assistant" and any(
        block.get("type") == "server_tool_use" for block in blocks(last)
    )


def order_of_roles(body: Object, betas: set[str]) -> str | None:
    roles = [message.get("role") for message in messages(body)]
    if roles[0] != "user":
        return 'messages: first message must use the "user" role'
    if any(one == other for one, other in pairwise(roles)):
        return 'messages: roles must alternate between "user" and "assistant"'
    return None


def prefill(body: Object, betas: set[str]) -> str | None:
    """Only models before 4.6 go on from an assistant's message at the end."""
    last = messages(body)[-1]
    if last.get("role") != "assistant" or is_paused(body):
        return None
    if not TAKES_PREFILL.search(str(body["model"])):
        return (
            "This model does not support assistant message prefill. The conversation must end with"
            " a user message."
        )
    config = body.get("thinking")
    if is_object(config) and config.get("type") in ("enabled", "adaptive"):
        return (
            f"messages.{len(messages(body)) - 1}.content.0.type: Expected `thinking` or"
            " `redacted_thinking`, but found `text`. When `thinking` is enabled, a final"
            " `assistant` message must start with a thinking block."
        )
    text = str(blocks(last)[-1].get("text", ""))
    if text != text.rstrip():
        return "messages: final assistant content cannot end with trailing whitespace"
    return None


def kinds_of_blocks(body: Object, betas: set[str]) -> str | None:
    for i, message in enumerate(messages(body)):
        if not blocks(message):
            return f"messages.{i}: all messages must have non-empty content"
        for j, block in enumerate(blocks(message)):
            if block.get("type") not in BLOCKS[str(message["role"])]:
                return f"messages.{i}.content.{j}: Input tag '{block.get('type')}' is not allowed"
    return None


def texts(body: Object, betas: set[str]) -> str | None:
    for where, block in [*every_block(body), *(("system", b) for b in objects(body.get("system")))]:
        if block.get("type") == "text" and not str(block.get("text", "")).strip():
            return f"{where}: text content blocks must contain non-whitespace text"
    return None


def pairs(body: Object, betas: set[str]) -> str | None:
    asked: set[str] = set()
    for i, message in enumerate(messages(body)):
        results = [b for b in blocks(message) if b.get("type") == "tool_result"]
        answered = [str(b["tool_use_id"]) for b in results]
        if missing := asked - set(answered):
            return (
                f"messages.{i - 1}: `tool_use` ids were found without `tool_result` blocks"
                f" immediately after: {', '.join(sorted(missing))}."
            )
        if unexpected := set(answered) - asked:
            return (
                f"messages.{i}: unexpected `tool_use_id` found in `tool_result` blocks:"
                f" {', '.join(sorted(unexpected))}."
            )
        if len(answered) != len(set(answered)):
            return f"messages.{i}: each tool_use must have a single result."
        kinds = [b.get("type") == "tool_result" for b in blocks(message)]
        if kinds != sorted(kinds, reverse=True):
            return f"messages.{i}: `tool_result` blocks must come first"
        asked = {str(b["id"]) for b in blocks(message) if b.get("type") == "tool_use"}
    return None


def server_pairs(body: Object, betas: set[str]) -> str | None:
    for i, message in enumerate(messages(body)):
        open_calls: list[str] = []
        for block in blocks(message):
            if block.get("type") == "server_tool_use":
                open_calls.append(str(block["id"]))
            elif block.get("type") in SERVER_RESULTS:
                if str(block["tool_use_id"]) not in open_calls:
                    return f"messages.{i}: web_search_tool_result without server_tool_use"
                open_calls.remove(str(block["tool_use_id"]))
                for found in objects(block.get("content")):
                    if not found.get("encrypted_content"):
                        return f"messages.{i}: encrypted_content: Field required"
        if open_calls and not (is_paused(body) and message is messages(body)[-1]):
            return f"messages.{i}: server_tool_use {open_calls[0]} without its result"
    return None


def calls_and_results(body: Object, betas: set[str]) -> str | None:
    for where, block in every_block(body):
        if block.get("type") in ("tool_use", "server_tool_use"):
            if not is_object(block.get("input")):
                return f"{where}.input: Input should be a valid dictionary"
            if not re.fullmatch(r"[a-zA-Z0-9_-]+", str(block.get("id"))):
                return f"{where}.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            if not TOOL_NAME.fullmatch(str(block.get("name"))):
                return f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if block.get("type") == "tool_result" and block.get("is_error"):
            inner = objects(block.get("content"))
            if not inner:
                return f"{where}: content cannot be empty if `is_error` is true"
            if any(part.get("type") != "text" for part in inner):
                return f'{where}: all content must be type "text" if `is_error` is true'
    return None


def thoughts(body: Object, betas: set[str]) -> str | None:
    for where, block in every_block(body):
        if block.get("type") == "thinking" and not block.get("signature"):
            return f"{where}.thinking.signature: Field required"
        if block.get("type") == "thinking" and "forged" in str(block["signature"]):
            return f"{where}: Invalid `signature` in `thinking` block"
        if "thinking" in str(block.get("type")) and "cache_control" in block:
            return f"{where}.cache_control: Extra inputs are not permitted"
    return None


def files(body: Object, betas: set[str]) -> str | None:
    for where, block in every_block(body):
        source = block.get("source")
        if not is_object(source):
            continue
        if source.get("type") == "base64":
            try:
                data = base64.b64decode(str(source["data"]), validate=True)
            except binascii.Error:
                return f"{where}.source.base64.data: Invalid base64"
            if block["type"] == "image" and len(data) >= 5 * 1024 * 1024:
                return f"{where}.image.source.base64: image exceeds 5 MB maximum"
            if data.startswith(b"\xff\xd8\xff") and source.get("media_type") != "image/jpeg":
                return f"{where}: the image appears to be a image/jpeg image"
        title = block.get("title")
        if title is not None and not re.fullmatch(r"[A-Za-z0-9 \-()\[\]]{1,500}", str(title)):
            return f"{where}.document.title: invalid characters"
    return None


def caching(body: Object, betas: set[str]) -> str | None:
    system, tools = objects(body.get("system")), objects(body.get("tools"))
    everything = [*system, *tools, *(block for _, block in every_block(body))]
    marks = sum("cache_control" in block for block in everything)
    if marks > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    return None


def tools(body: Object, betas: set[str]) -> str | None:
    seen: set[str] = set()
    for i, tool in enumerate(objects(body.get("tools"))):
        kind = str(tool.get("type", "custom"))
        if kind not in TOOL_TYPES:
            return f"tools.{i}: Input tag '{kind}' does not match any of the expected tags"
        if (beta := COMPUTER_BETAS.get(kind)) and beta not in betas:
            return f"tools.{i}: Input tag '{kind}' needs the beta header {beta}"
        if kind == "computer_toolset_20260801":
            continue
        name = str(tool.get("name"))
        if not TOOL_NAME.fullmatch(name):
            return f"tools.{i}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if name in seen:
            return "tools: Tool names must be unique."
        seen.add(name)
        if kind == "custom" and (wrong := _schema_error(tool.get("input_schema"))):
            return f"tools.{i}.custom.input_schema{wrong}"
    return None


def _schema_error(schema: object) -> str | None:
    if not is_object(schema):
        return ": Field required"
    if schema.get("type") != "object":
        return ".type: Input should be 'object'"
    if {"oneOf", "anyOf", "allOf"} & set(schema):
        return ": input_schema does not support oneOf, allOf, or anyOf at the top level"
    if not is_object(schema.get("properties", {})):
        return ": JSON schema is invalid. It must match JSON Schema draft 2020-12"
    if "required" in schema and not is_list(schema["required"]):
        return ": JSON schema is invalid. It must match JSON Schema draft 2020-12"
    return None


def tool_choice(body: Object, betas: set[str]) -> str | None:
    choice = body.get("tool_choice")
    if not is_object(choice):
        return None
    if not body.get("tools"):
        return "tool_choice may only be specified while providing tools."
    forced = choice.get("type") in ("any", "tool")
    if forced and BOUND.search(str(body["model"])):
        return "tool_choice: forced tool use is not supported for this model"
    thinking = body.get("thinking")
    if forced and is_object(thinking) and thinking.get("type") in ("enabled", "adaptive"):
        return "Thinking may not be enabled when tool_choice forces tool use."
    names = {tool.get("name") for tool in objects(body.get("tools"))}
    if choice.get("type") == "tool" and choice.get("name") not in names:
        return f"Tool '{choice.get('name')}' not found in provided tools"
    return None


def thinking(body: Object, betas: set[str]) -> str | None:
    model, config = str(body["model"]), body.get("thinking")
    if not is_object(config):
        return None
    kind = config.get("type")
    if kind == "enabled":
        budget = config.get("budget_tokens")
        if ADAPTIVE_ONLY.search(model):
            return '"thinking.type.enabled" is not supported for this model.'
        if not isinstance(budget, int) or budget < 1024:
            return "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        if isinstance(most := body["max_tokens"], int) and budget >= most:
            return "`max_tokens` must be greater than `thinking.budget_tokens`."
    if kind == "adaptive" and re.search(r"claude-3|-4-5|sonnet-4-2|opus-4-[12]", model):
        return "adaptive thinking is not supported on this model"
    if kind == "disabled" and (NEVER_OFF.search(model) or "sonnet-5-5" in model):
        return '"thinking.type.disabled" is not supported for this model.'
    if kind == "between_tools" and "sonnet-5-5" not in model:
        return '"thinking.type.between_tools" is not supported for this model.'
    if kind == "between_tools" and set(config) != {"type"}:
        return "thinking.between_tools: Extra inputs are not permitted"
    if "block_binding" in config and "thinking-binding-controls-2026-08-01" not in betas:
        return "thinking.block_binding: Extra inputs are not permitted"
    return None


def changed_past(body: Object, betas: set[str]) -> str | None:
    """Refuse every thinking block as if the messages before it had changed."""
    if not BOUND.search(str(body["model"])):
        return None
    if not any("thinking" in str(block.get("type")) for _, block in every_block(body)):
        return None
    config = body.get("thinking")
    if is_object(config) and config.get("type") == "between_tools":
        # This kind of thinking has no such control; chatd sends the request again.
        return None
    if is_object(config) and config.get("block_binding") == {
        "prefix_mismatch_behavior": "drop_block"
    }:
        return None
    return (
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a"
        " different conversation."
    )


def sampling(body: Object, betas: set[str]) -> str | None:
    given = {"temperature", "top_p", "top_k"} & set(body)
    config = body.get("thinking")
    on = is_object(config) and config.get("type") in ("enabled", "adaptive")
    if given and (on or ADAPTIVE_ONLY.search(str(body["model"]))):
        return f"`{min(given)}` is not supported when thinking is enabled."
    takes_both = re.match(r"claude-3|claude-(sonnet|opus)-4-2025", str(body["model"]))
    if {"temperature", "top_p"} <= given and not takes_both:
        return "`temperature` and `top_p` cannot both be specified for this model."
    return None


Rule = Callable[[Object, set[str]], str | None]

RULES: tuple[Rule, ...] = (
    *(
        top_level,
        order_of_roles,
        prefill,
        kinds_of_blocks,
        texts,
        pairs,
        server_pairs,
        calls_and_results,
    ),
    *(thoughts, files, caching, tools, tool_choice, thinking, changed_past, sampling),
)
