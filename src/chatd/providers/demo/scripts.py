"""The scenes of the demo model. Words of the prompt choose one; the first match is played."""

import random
import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from chatd.domain.model.protocol import (
    ForcedTool,
    ModelRequest,
    ProviderFault,
    SourceFound,
    ToolSpec,
)
from chatd.domain.prompt.compaction import SUMMARY_PREFIX
from chatd.domain.text import clip
from chatd.providers.demo.coding_task import NEEDED_TOOLS, coding_scene, ensure_workspace
from chatd.providers.demo.turn import (
    CallTool,
    CompletedCall,
    DemoScene,
    DemoTurn,
    RefuseAnswer,
    SetPace,
    ThinkText,
    parse_object,
    read_turn,
    user_text,
)
from chatd.providers.tool_schema import is_list, is_object

_WELCOME: Final = """\
Hello! You are talking to **chatd**, and I am its demo model: I need no key and no network, and I \
play scripts. Everything else is real: chatd stored your message in PostgreSQL before it confirmed \
it, and it stores my answer too.

You said:

{quote}

| Say | and I will |
|---|---|
| `think about it` | show my reasoning before I answer |
| `show me code` or `a table` | answer in Markdown |
| `a long answer` | write until you interrupt me |
| `slow` or `fast` | change my speed |
| `an error` | fail twice, so that you see chatd retry |
| `run a command` or `list files` | call a tool, in a workspace of this chat |
| `fix the failing test` | work as an agent: find a bug, fix it, run the tests |

While I answer, you can:

- **Stop following** and come back: the answer continues without you.
- **Interrupt me** (`POST .../interrupt`): the partial answer is kept.
- **Send another message**: it waits, joins this turn or interrupts it, by its `busy_behavior`.
- **Kill the server** with `kill -9` and start it again: the chat continues where it stopped.

The README shows a curl command for each of these. To add a real model, declare it and its \
provider in `chatd.toml` as docs/models.md shows, then restart chatd.
"""
_AGAIN: Final = """\
You said:

{quote}

I only play scripts, so I have no opinion on that. These words start one: **fix the failing \
test**, **tool**, **list files**, **think**, **code**, **table**, **long**, **slow**, **fast**, \
**error**. For real answers, declare a real model in `chatd.toml`.
"""
_THOUGHTS: Final = """\
Three boxes are labelled "apples", "pears" and "mixed", and every label is wrong. The box labelled \
"mixed" cannot be mixed, so one fruit from it names its whole content. The other two follow.
"""
_CONCLUSION: Final = """\
1. Open the box labelled **mixed** and take out one fruit. This box holds only that kind.
2. If it is an apple, the box labelled "pears" is the mixed one, and "apples" holds the pears.

My reasoning is above this answer, as a part of its own.
"""
_CODE: Final = """\
```python
def chunks(items: list[int], size: int) -> list[list[int]]:
    return [items[at : at + size] for at in range(0, len(items), size)]
```

`chunks([1, 2, 3], 2)` returns `[[1, 2], [3]]`.
"""
_MARKDOWN: Final = """\
| part of chatd | what it does |
|---|---|
| domain | decides, in pure functions |
| store | keeps rows in PostgreSQL |
| engine | runs chats in workers that may die |
| stream | sends changes to viewers |

> A quotation with **bold**, *italic*, ~~struck~~, `code` and a [link](https://example.org).
"""
_LIST: Final = """\
Things to try in the first five minutes:

1. Ask me to **fix the failing test** and follow the tool calls.
2. Disconnect while I answer, and come back with the last `id:` that you received.
3. Send a second message while I answer the first.
4. Interrupt me, then say **continue**.
5. Ask for **an error** and see how chatd waits and retries.
"""
_CHAPTERS: Final = (
    "**Nothing is lost.** A message is in history once, in the queue once, or refused.",
    "**Nothing is stuck.** When a worker dies, another one reads the chat's row and continues.",
    "**One writer.** Of two workers that write to a chat at once, one writes nothing.",
    "**A command runs once.** After a crash the next worker finds it by the id of its tool call.",
    "**Streams follow the database.** Reconnect to any replica with your last version.",
)
_RECOVERED: Final = """\
There it is: an answer. I failed before because you asked for an error. Each time chatd discarded \
the partial answer, waited a little longer, and called me again. After a permanent failure you \
would see an error and could retry yourself.
"""
_NO_TOOLS: Final = """\
This chat does not offer me the tools for that: {tools}. They come with workspaces, which this \
server may have disabled: see `workspaces.enabled` in its settings.
"""
# The first match is played.
_TEXT_SCENES: Final[Mapping[str, DemoScene]] = {
    r"think|thinking|reason|reasoning|puzzle": (ThinkText(_THOUGHTS), _CONCLUSION),
    r"table|markdown": (_MARKDOWN,),
    r"code|function|program": (_CODE,),
    r"sources?|search|cite": (
        "An answer can cite sources. These two are examples.",
        SourceFound(url="https://example.org/durable-chats", title="Durable chats, an example"),
        SourceFound(url="https://example.com/one-writer", title="One writer, an example"),
    ),
    r"refuse|refusal": (RefuseAnswer("You asked the demo model to refuse an answer."),),
    r"slow|slowly": (SetPace(0.1), f"This is a slow answer.\n\n{_LIST}"),
    r"fast|quick|quickly": (SetPace(0.0), f"This is a fast answer.\n\n{_LIST}"),
}
# chatd's own tools. Any other tool is one that a client has declared.
_CHATD_TOOLS: Final = """
ask_user_question attach_file close_agent computer create_workspace edit_files execute
interrupt_agent list_agents list_subagent_models list_templates message_agent process_list
process_output process_signal propose_plan read_file read_skill read_skill_file read_template
spawn_agent start_workspace stop_workspace wait_agent write_file
"""
_SUMMARY_REQUEST: Final = re.compile(r"^write a summary\b", re.IGNORECASE | re.MULTILINE)
_CHAT_EXCERPT: Final = re.compile(r"<chat>\s(.*)\s</chat>", re.DOTALL)
_MAX_QUOTED_CHARS: Final = 601
_MAX_SHOWN_CHARS: Final = 2000
_MAX_TITLE_WORDS: Final = 6
_POLITE_OPENING: Final = re.compile(
    r"^\W*(?:(?:fast|slow|please|hello|hi|hey|(?:can|could|would) you|i (?:want|need) (?:you )?to"
    r"|help me)\b\W*)+(?=\w)",
    re.IGNORECASE,
)
_DANGLING_END: Final = re.compile(
    r"(?: (?:a|an|and|as|at|but|by|for|from|if|in|is|it|of|on|or|that|the|to|with))+$",
    re.IGNORECASE,
)
_MIN_TOOL_WORD_CHARS: Final = 4
_MAX_SCHEMA_DEPTH: Final = 8
_MAX_SAMPLE_ITEMS: Final = 3


def choose_scene(request: ModelRequest, *, seed: int, failures_left: int) -> DemoScene:
    """`failures_left`: how often the model still fails if the prompt asks for an error."""
    turn = read_turn(request)
    if request.output_schema is not UNSET:
        return (SetPace(0.0), sample_json(bytes(request.output_schema), turn.prompt))
    if (tool := _demanded_tool(request)) is not None:
        return _call_unknown_tool(tool, turn)
    if (excerpt := _CHAT_EXCERPT.fullmatch(turn.prompt)) is not None:
        return (SetPace(0.0), _title(excerpt[1]))
    if request.tool_choice == "none" and _SUMMARY_REQUEST.search(turn.prompt):
        return (_summary(request),)
    if turn.mentions(r"errors?|fail(?:s|ure)?") and not turn.mentions(r"failing test|fix"):
        return _error_scene(turn, failures_left)
    return _tool_scene(turn) or _text_scene(turn, seed)


def _text_scene(turn: DemoTurn, seed: int) -> DemoScene:
    for pattern, scene in _TEXT_SCENES.items():
        if turn.mentions(pattern):
            return scene
    if turn.mentions("long|essay|story"):
        chapters = list(_CHAPTERS)
        random.Random(f"{seed}:{turn.prompt}").shuffle(chapters)
        story = "\n\n".join(chapters * 5)
        return (f"This is a long answer. Interrupt me at any time.\n\n{story}\n\nThat is all.",)
    if not turn.calls and (tools := _unknown_tools(turn)):
        return _call_unknown_tool(tools[0], turn)
    prompt = clip(turn.prompt, _MAX_QUOTED_CHARS)
    quote = "\n".join(f"> {line}" for line in prompt.splitlines()) or "> (nothing)"
    if turn.files:
        quote += f"\n\nand attached {', '.join(turn.files[:5])}."
    return ((_WELCOME if turn.number <= 1 else _AGAIN).format(quote=quote),)


def _error_scene(turn: DemoTurn, failures_left: int) -> DemoScene:
    if turn.mentions("auth|key|fatal|permanent"):
        message = "the demo model was asked to refuse the key"
        return (ProviderFault(message=message, status_code=401, type="authentication_error"),)
    if failures_left <= 0:
        return (_RECOVERED,)
    if failures_left % 2 == 0:
        message = "the demo model was asked to fail"
        return (ProviderFault(message=message, status_code=529, type="overloaded_error"),)
    message = "the demo model was asked to fail in the middle of an answer"
    return ("This answer begins, and then it bre", ProviderFault(message=message, incomplete=True))


# Tools


def _tool_scene(turn: DemoTurn) -> DemoScene | None:
    unknown = _unknown_tools(turn)
    if turn.calls and turn.calls[-1].name in {tool.name for tool in unknown}:
        return _show_result(turn.calls[-1])
    if not turn.calls and (tool := _mentioned_tool(turn, unknown)) is not None:
        return _call_unknown_tool(tool, turn)
    if turn.mentions("fix|repair|failing test"):
        missing = [f"`{name}`" for name in NEEDED_TOOLS if name not in turn.tools]
        tools = ", ".join(missing)
        return (_NO_TOOLS.format(tools=tools),) if missing else coding_scene(turn)
    if turn.mentions("list|ls"):
        if turn.mentions("templates?"):
            return _list_templates(turn)
        if not turn.mentions("files?|director(?:y|ies)|folders?|workspace"):
            return (_LIST,)
        return _run_command(turn, "pwd && ls -la | head -n 50", "I'll list the workspace's files.")
    if turn.mentions("tools?|command|run|execute"):
        return _run_command(turn, "date && uname -sr && pwd", "I'll run a command.")
    return None


def _run_command(turn: DemoTurn, command: str, text: str) -> DemoScene:
    if "execute" in turn.tools:
        return ensure_workspace(turn, command, text) or _show_result(turn.calls[-1])
    if not turn.calls and (tools := _unknown_tools(turn)):
        return _call_unknown_tool(tools[0], turn)
    return _list_templates(turn)


def _list_templates(turn: DemoTurn) -> DemoScene:
    if turn.calls:
        return _show_result(turn.calls[-1])
    if "list_templates" in turn.tools:
        return ("I'll list the templates.", CallTool("list_templates"))
    return (_NO_TOOLS.format(tools="`execute`, `list_templates`"),)


def _show_result(call: CompletedCall) -> DemoScene:
    output = call.result.get("output")
    text = (output if isinstance(output, str) else call.text).strip()
    shown = text[:_MAX_SHOWN_CHARS].replace("```", "'''")
    more = "\n\nThe rest is cut." if len(text) > _MAX_SHOWN_CHARS else ""
    outcome = "That failed" if call.failed else "Done"
    return (f"{outcome}. The tool `{call.name}` answered:\n\n```\n{shown}\n```{more}",)


def _unknown_tools(turn: DemoTurn) -> list[ToolSpec]:
    """Tools that a client has declared. No script is written for them."""
    return [tool for name, tool in turn.tools.items() if name not in _CHATD_TOOLS.split()]


def _mentioned_tool(turn: DemoTurn, tools: list[ToolSpec]) -> ToolSpec | None:
    """The first tool named in the prompt, by its whole name or by a word of it."""
    prompt = turn.prompt.lower()
    for tool in tools:
        words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name).lower())
        long = {word for word in words if len(word) >= _MIN_TOOL_WORD_CHARS}
        if tool.name.lower() in prompt or long & set(re.findall(r"[a-z]+", prompt)):
            return tool
    return None


def _demanded_tool(request: ModelRequest) -> ToolSpec | None:
    match request.tool_choice:
        case ForcedTool(name=name):
            return next((tool for tool in request.tools if tool.name == name), None)
        case "required" if request.tools:
            return request.tools[0]
        case _:
            return None


def _call_unknown_tool(tool: ToolSpec, turn: DemoTurn) -> DemoScene:
    args = parse_object(sample_json(bytes(tool.input_schema), turn.prompt))
    return (f"I'll call the tool `{tool.name}`.", CallTool(tool.name, args))


# Summaries, titles and other answers in a given form


def _summary(request: ModelRequest) -> str:
    """A script knows only what the user asked for, so the summary lists that."""
    messages = [message for message in request.messages if message.role == "user"]
    asked = [line for message in messages for line in _requests(user_text(message))]
    listed = "\n".join(f"- {text[:200]}" for text in asked[-20:]) or "- (nothing)"
    last = asked[-1][:500] if asked else "(nothing)"
    return (
        f"Goal: {last}\n\nFacts: the chat was with the demo model, which plays scripts. The user"
        f" wrote, oldest first:\n{listed}\n\nProgress: all but the last was answered.\n\n"
        f"Next: {last}"
    )


def _requests(text: str) -> list[str]:
    """What the user asked for in a message; an earlier summary lists it line by line."""
    if text.startswith(SUMMARY_PREFIX.strip()):
        return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]
    own = _SUMMARY_REQUEST.split(text)[0].strip()
    return [own] if own else []


def _title(text: str) -> str:
    """The first words of the text, without a polite opening and without a dangling end."""
    words = re.findall(r"[^\s\"'`“”]+", _POLITE_OPENING.sub("", text))
    title = _DANGLING_END.sub("", " ".join(words[:_MAX_TITLE_WORDS])).strip(".,:;!?- ")
    return title[:1].upper() + title[1:] if title else "New chat"


def sample_json(schema: bytes, prompt: str) -> str:
    """JSON that the schema accepts: titles, labels, simple forms and arguments of tools."""
    about = re.sub(r"</?[a-z_-]+>|^Title:.*$", " ", prompt, flags=re.MULTILINE).strip()
    return msgspec.json.encode(_sample(parse_object(schema), "", about, 0)).decode()


def _sample(schema: object, name: str, about: str, depth: int) -> object:
    """A value for the field `name`. The name says what a string is about."""
    if not is_object(schema) or depth > _MAX_SCHEMA_DEPTH:
        return None
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "anyOf", "oneOf", "allOf"):
        if is_list(choices := schema.get(key)) and choices:
            return choices[0] if key == "enum" else _sample(choices[0], name, about, depth + 1)
    kind = schema.get("type")
    match kind[0] if is_list(kind) and kind else kind:
        case "string":
            return _sample_text(name.lower(), about, schema.get("maxLength"))
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            least = schema.get("minItems", 0)
            count = min(least, _MAX_SAMPLE_ITEMS) if isinstance(least, int) else 0
            return [_sample(schema.get("items"), name, about, depth + 1)] * count
        case _:
            fields = schema.get("properties")
            if not is_object(fields):
                return {}
            required = schema.get("required")
            wanted = [key for key in fields if is_list(required) and key in required]
            return {key: _sample(fields[key], key, about, depth + 1) for key in wanted or fields}


def _sample_text(name: str, about: str, max_chars: object) -> str:
    if "title" in name or "name" in name:
        text = _title(about)
    elif "label" in name:
        text = "Answered in demo mode"
    else:
        text = " ".join(about.split()[:30]) or "Nothing was said"
    return text[:max_chars] if isinstance(max_chars, int) else text
