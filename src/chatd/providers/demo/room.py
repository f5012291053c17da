"""A workspace to run commands in: what the demo model does when it has none.

The tools say themselves what is missing: an error names the tool that helps. Each is tried twice,
because somebody may have stopped the first; what failed for good is told in the tool's own words.
"""

from typing import Final

import msgspec
from msgspec import Struct

from chatd.providers.demo.beats import Say, Scene, Think, Use, say
from chatd.providers.demo.turn import Turn, Used

_QUOTED: Final = 600
_TRIES: Final = 2


class _Template(Struct, frozen=True):
    id: str
    name: str = ""


class _Templates(Struct, frozen=True):
    templates: tuple[_Template, ...] = ()
    recommended_template_id: str | None = None


def run(turn: Turn, command: str, words: str) -> Scene | None:
    """What leads to a result of the command. None: it is there, the last of its calls."""
    tries = turn.done("execute", command=command)
    if not tries:
        return _run(command, words)
    if not tries[-1].failed:
        return None
    last = turn.used[-1]
    match last.name:
        case "list_templates":
            return _make(turn) or _nowhere(turn)
        case "create_workspace" | "start_workspace":
            if last.failed and (not last.is_error or _often(turn, last.name)):
                return _nowhere(turn)
        case _:
            if (scene := _get(turn, last.text)) is not None:
                return scene
            if len(tries) >= _TRIES:
                return _nowhere(turn)
    return _run(command, "Let me try again.")


def give_up(what: str, last: Used | None) -> Scene:
    told = "" if last is None else f"\n\nThe tool `{last.name}` said:\n\n{_fenced(last.text)}"
    return say(f"{what}{told}\n\nI stop here. Ask me again once that is mended.")


def _run(command: str, words: str) -> Scene:
    return Scene(beats=(Say(text=words), Use(name="execute", args={"command": command})))


def _nowhere(turn: Turn) -> Scene:
    return give_up("I have no workspace that I can run commands in.", turn.used[-1])


def _get(turn: Turn, error: str) -> Scene | None:
    if "start_workspace" in error and _may(turn, "start_workspace"):
        words = "The workspace is stopped. I'll start it."
        return Scene(beats=(Say(text=words), Use(name="start_workspace", args={})))
    if (
        "create_workspace" in error
        and _may(turn, "create_workspace")
        and turn.has("list_templates")
    ):
        return _make(turn)
    return None


def _may(turn: Turn, name: str) -> bool:
    return turn.has(name) and not _often(turn, name)


def _often(turn: Turn, name: str) -> bool:
    return len(turn.done(name)) >= _TRIES


def _make(turn: Turn) -> Scene | None:
    listed = turn.done("list_templates")
    if not listed or (listed[-1].failed and _may(turn, "list_templates")):
        return Scene(
            beats=(
                Think(text="There is no workspace yet. I can make one from a template.\n"),
                Say(text="There is no workspace yet. I'll see which templates there are."),
                Use(name="list_templates", args={}),
            )
        )
    template = _choose(listed[-1])
    if template is None:
        return None
    words = f"I'll make a workspace from the template `{template.name}`. This can take a moment."
    args = {"template_id": template.id, "name": "demo"}
    return Scene(beats=(Say(text=words), Use(name="create_workspace", args=args)))


def _choose(listed: Used) -> _Template | None:
    """The one with the demo, else what is recommended, else the first."""
    try:
        found = msgspec.json.decode(listed.text, type=_Templates)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None

    def rank(template: _Template) -> int:
        return 2 * (template.name == "demo") + (template.id == found.recommended_template_id)

    return max(found.templates, key=rank, default=None)


def _fenced(text: str) -> str:
    cut = text.strip()[:_QUOTED].replace("```", "'''")
    return f"```\n{cut}\n```"
