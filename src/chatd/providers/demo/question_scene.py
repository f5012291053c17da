"""The scene that asks the user a question, then runs a command that may need an approval."""

import shlex

import msgspec
from msgspec import Struct

from chatd.providers.demo.scripts import TEXTS, CallTool, CompletedCall, DemoScene, DemoTurn
from chatd.providers.demo.tool_scenes import choose_template, execute_first, show_result
from chatd.providers.sse import DECODE_ERRORS


class _Answer(Struct, frozen=True):
    chosen: tuple[str, ...] = ()
    text: str = ""


class _Answers(Struct, frozen=True):
    answers: tuple[_Answer, ...] = ()


def ask_first(turn: DemoTurn) -> DemoScene:
    if "ask_user_question" not in turn.tools:
        return (TEXTS.no_tools.format(tools="`ask_user_question`"),)
    asked = turn.find_calls(CallTool("ask_user_question"))
    if not asked:
        questions = msgspec.to_builtins(TEXTS.questions)
        ask = CallTool("ask_user_question", {"questions": questions})
        return _prepare_workspace(turn) or (TEXTS.ask_first, ask)
    if asked[-1].failed or not (choice := _chosen(asked[-1])):
        return (TEXTS.not_answered,)
    command = f"echo {shlex.quote(choice)} > chatd-demo.txt && cat chatd-demo.txt"
    tried = turn.find_calls(CallTool("execute", {"command": command}))
    if tried and tried[-1].is_error and "so it did not run" in tried[-1].text:
        return (TEXTS.not_approved.format(reason=tried[-1].output),)
    scene = execute_first(turn, command, TEXTS.run_answer.format(choice=choice))
    return scene or show_result(turn.calls[-1], ending=TEXTS.approved)


def _prepare_workspace(turn: DemoTurn) -> DemoScene | None:
    """So that the command is asked for once, and not again after a workspace was made for it."""
    if not {"list_templates", "create_workspace"} <= turn.tools.keys():
        return None
    if not (listed := turn.find_calls(CallTool("list_templates"))):
        return ("I'll look for a workspace first.", CallTool("list_templates"))
    template = choose_template(listed[-1])
    if template is None or turn.find_calls(CallTool("create_workspace")):
        return None
    return (CallTool("create_workspace", {"template_id": template.id, "name": "demo"}),)


def _chosen(call: CompletedCall) -> str:
    """The label or the words of the first answer."""
    try:
        answers = msgspec.json.decode(call.text, type=_Answers).answers
    except DECODE_ERRORS:
        return ""
    return next((" ".join((*one.chosen, one.text)).strip() for one in answers), "")
