"""Parts: the pieces of a message, in one JSON shape for storage and wire."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.description import AGENT_ID, CREATED_AT, FILE_ID, INTERNAL, UPDATED_AT, describe
from chatd.domain.ids import ToolCallId
from chatd.domain.text import Json

CONTENT_VERSION = 1

SUMMARY_TOOL_NAME: Final = "chat_summarized"
"""Summaries are shown as a call of this tool. No model may call it."""
SUMMARY_PREFIX: Final = """\
The chat so far has been condensed into the summary below. If messages follow it, they are the \
newest ones, word for word. Continue the work from where it stops, as if there had been no break; \
do not comment on the summary.

"""


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class TextPart(_Part, frozen=True, kw_only=True, tag="text"):
    """Text."""

    text: Annotated[str, describe("The text.", "The test fails because the sum starts at 1.")]
    provider_metadata: Annotated[Json, INTERNAL] = UNSET


class ReasoningPart(_Part, frozen=True, kw_only=True, tag="reasoning"):
    """Reasoning of the model."""

    text: Annotated[
        str,
        describe(
            "What the model thought, or the provider's summary of it.",
            "I should look at the test first.",
        ),
    ]
    created_at: Annotated[str | None, describe("When it began.", CREATED_AT)] = None
    completed_at: Annotated[str | None, describe("When it ended.", UPDATED_AT)] = None
    provider_metadata: Annotated[Json, INTERNAL] = UNSET


class ToolCallPart(_Part, frozen=True, kw_only=True, tag="tool-call"):
    """A call of a tool."""

    tool_call_id: Annotated[
        ToolCallId, describe("The id that the model gave to the call.", "toolu_01A9")
    ]
    tool_name: Annotated[str, describe("The name of the tool.", "run_command")]
    args: Annotated[
        Json,
        describe(
            "The arguments, any JSON. Absent if the model's text was not valid JSON.",
            {"command": "pytest -q"},
        ),
    ] = UNSET
    args_text: Annotated[
        str | None,
        describe(
            "The arguments as the model wrote them, if that is not valid JSON: such as those of a"
            " call that was cut off.",
            '{"command": "pyt',
        ),
    ] = None
    args_delta: Annotated[
        str | None, describe("Only in live parts: the next characters of the arguments.", '{"comm')
    ] = None
    provider_executed: Annotated[bool, describe("The provider runs the tool, not chatd.")] = False
    cut: Annotated[
        bool,
        describe(
            "The answer was cut off here: the arguments may be incomplete, and the call never runs."
        ),
    ] = False
    mcp_server_config_id: Annotated[
        str | None, describe("The MCP server that has the tool.", "github")
    ] = None
    created_at: Annotated[str | None, describe("When the model asked for it.", CREATED_AT)] = None
    provider_metadata: Annotated[Json, INTERNAL] = UNSET


class ToolResultPart(_Part, frozen=True, kw_only=True, tag="tool-result"):
    """The result of a tool call."""

    tool_call_id: Annotated[
        ToolCallId, describe("The id of the call that this answers.", "toolu_01A9")
    ]
    tool_name: Annotated[str, describe("The name of the tool.", "run_command")]
    result: Annotated[
        Json,
        describe(
            "What the tool returned, any JSON.", {"output": "1 failed, 3 passed", "exit_code": 1}
        ),
    ] = UNSET
    result_delta: Annotated[
        str | None, describe("Only in live parts: the next characters of the result.", "1 failed")
    ] = None
    is_error: Annotated[bool, describe("The call failed; the result says why.")] = False
    interrupted: Annotated[
        bool,
        describe("The turn was stopped before the call had a result; `is_error` is set too."),
    ] = False
    is_media: Annotated[bool, describe("The result is an image or another file.")] = False
    changed_args: Annotated[
        Json,
        describe(
            "The arguments that the call ran with, if a hook changed them.", {"command": "ls"}
        ),
    ] = UNSET
    provider_executed: Annotated[bool, describe("The provider ran the tool, not chatd.")] = False
    mcp_server_config_id: Annotated[
        str | None, describe("The MCP server that has the tool.", "github")
    ] = None
    created_at: Annotated[str | None, describe("When the result was there.", UPDATED_AT)] = None
    provider_metadata: Annotated[Json, INTERNAL] = UNSET


class SourcePart(_Part, frozen=True, kw_only=True, tag="source"):
    """A source that the model cites."""

    url: Annotated[
        str, describe("Its address.", "https://docs.python.org/3/library/functions.html")
    ]
    source_id: Annotated[str | None, describe("The provider's id of it.", "src_1")] = None
    title: Annotated[str | None, describe("Its title.", "Built-in Functions")] = None


class FilePart(_Part, frozen=True, kw_only=True, tag="file"):
    """A file."""

    media_type: Annotated[str, describe("The type of its content.", "image/png")]
    file_id: Annotated[str | None, describe("The id of the uploaded file.", FILE_ID)] = None
    name: Annotated[str | None, describe("Its name.", "screenshot.png")] = None
    data: Annotated[
        str | None,
        describe("The content in base64, of a file that was not uploaded.", "iVBORw0KGgo="),
    ] = None


class FileReferencePart(_Part, frozen=True, kw_only=True, tag="file-reference"):
    """Quoted lines of a file."""

    file_name: Annotated[str, describe("The path of the file.", "src/app.py")]
    start_line: Annotated[int, describe("The first quoted line.", 3)]
    end_line: Annotated[int, describe("The last quoted line.", 4)]
    content: Annotated[str, describe("The quoted text.", "def total(xs):\n    return sum(xs, 1)")]


class CommandPart(_Part, frozen=True, kw_only=True, tag="command"):
    """A command that the user runs in the chat's workspace. It is the only part of its message."""

    command: Annotated[str, describe("The command, for a shell.", "git status")]


class ContextFilePart(_Part, frozen=True, kw_only=True, tag="context-file"):
    """A file of the workspace whose text the model got as context."""

    context_file_path: Annotated[
        str, describe("The path of the file in the workspace.", "/home/dev/AGENTS.md")
    ]
    context_file_truncated: Annotated[bool, describe("The model got only its beginning.")] = False
    context_file_agent_id: Annotated[
        str | None, describe("The workspace agent that read it.", AGENT_ID)
    ] = None
    context_file_content: Annotated[str | None, INTERNAL] = None
    context_file_os: Annotated[str | None, INTERNAL] = None
    context_file_directory: Annotated[str | None, INTERNAL] = None


class SkillPart(_Part, frozen=True, kw_only=True, tag="skill"):
    """A skill of the workspace that the model was told about."""

    skill_name: Annotated[str, describe("The name of the skill.", "release-notes")]
    skill_description: Annotated[
        str | None, describe("What it is for.", "Writes release notes from the git log.")
    ] = None
    skill_dir: Annotated[str | None, INTERNAL] = None


class InstructionPart(_Part, frozen=True, kw_only=True, tag="instruction"):
    """What the model was told in a section of its instructions. An empty text withdraws it."""

    section: str
    text: str


class BoundaryPart(_Part, frozen=True, kw_only=True, tag="boundary"):
    """Stored next to the text of a summary: which messages before it the model still gets, after
    it.

    `kept` is the number of messages directly before the summary, without deleted ones. It is not an
    id, because a fork counts its messages anew. `keeps_prompt`: the newest user message before
    those is kept too. A part with another number, such as one of a forged import, keeps none; the
    statement that reads history does the same.
    """

    kept: Annotated[int, msgspec.Meta(ge=0, le=999_999)] = 0
    keeps_prompt: bool = False


class NoticePart(_Part, frozen=True, kw_only=True, tag="notice"):
    """What chatd itself tells the people who read the chat. The model never gets it."""

    code: Annotated[
        str,
        describe("What happened, as a word for programs. New words may be added.", "step_limit"),
    ]
    text: Annotated[
        str, describe("The same for people.", "The turn ended after 1,200 steps, its limit.")
    ]
    detail: Annotated[
        Mapping[str, str], describe("Facts of the notice, by name.", {"steps": "1200"})
    ] = {}


class UnknownPart(Struct, frozen=True, kw_only=True):
    raw: Raw


KnownPart = (
    TextPart
    | ReasoningPart
    | ToolCallPart
    | ToolResultPart
    | SourcePart
    | FilePart
    | FileReferencePart
    | CommandPart
    | ContextFilePart
    | SkillPart
    | InstructionPart
    | BoundaryPart
    | NoticePart
)
Part = KnownPart | UnknownPart


_NESTING_RESERVE: Final = 400


def validate_json(text: str) -> Raw:
    """JSON of a client, unchanged. Raises ValueError: "not JSON: ..." or "nested too deeply"."""
    try:
        msgspec.json.decode(text)
        # Later decodes run deeper in the stack and nested in a message, so require a reserve.
        msgspec.json.decode("[" * _NESTING_RESERVE + text + "]" * _NESTING_RESERVE)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return Raw(text.encode())
