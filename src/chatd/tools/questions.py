"""The tool by which a model asks the user. The engine asks valid questions, and the user's answers
are the call's result; the tool itself runs only for questions that cannot be asked."""

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Raw, Struct

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.questions import QUESTION_TOOL, read_questions
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import Tool, ToolContext, ToolEffect
from chatd.domain.tool_modes import ToolOrigin
from chatd.tools.arguments import NOT_BLANK, argument, schema_of

DESCRIPTION: Final = (
    "Ask the user one or more questions with options to choose from, when you need a decision that"
    " you cannot make from what you know. The turn waits for the answers. The user can also answer"
    " in own words. Ask all your questions in one call; do not ask what you can find out yourself."
)


class OptionArguments(Struct, frozen=True, kw_only=True):
    label: Annotated[str, NOT_BLANK, argument("The option in a few words.")]
    description: Annotated[str, argument("What choosing it means.")] = ""


class OneQuestion(Struct, frozen=True, kw_only=True):
    header: Annotated[str, argument("The subject in one or two words.")] = ""
    question: Annotated[str, NOT_BLANK, argument("The question, as a sentence.")]
    options: Annotated[list[OptionArguments], argument("2 to 4 options, each with its own label.")]
    multi_select: Annotated[bool, argument("Whether several may be chosen. Default false.")] = False


class QuestionArguments(Struct, frozen=True, kw_only=True):
    questions: Annotated[list[OneQuestion], argument("1 to 8 questions.")]


class QuestionTool(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`."""

    spec: ToolSpec
    effect: ToolEffect = "read"
    serial: bool = False
    origin: ToolOrigin = "chatd"
    stops_turn: bool = False
    timeout_s: float = 10.0

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        del context
        try:
            read_questions(args)
        except ToolError as error:
            return error_output(error.message)
        return error_output("The questions could not be asked. Continue with your best judgement.")

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


class QuestionTools:
    """Satisfies `ports.ToolFamily`. A subagent reports to its parent and asks nobody else."""

    def __init__(self) -> None:
        spec = ToolSpec(
            name=QUESTION_TOOL,
            description=DESCRIPTION,
            input_schema=schema_of(QuestionArguments),
        )
        self._tools = (QuestionTool(spec=spec),)

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return self._tools if chat.is_root and chat.mode != "explore" else ()
