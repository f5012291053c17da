"""Which script the demo model plays: chosen by the words of the prompt, the first that fit."""

import random
import re
from collections.abc import Callable
from typing import Final

from chatd.domain.model import ModelRequest, ProviderFault
from chatd.domain.summary import PREFIX
from chatd.providers.demo import words
from chatd.providers.demo.beats import Break, Cite, Refuse, Say, Scene, Think, Use, say
from chatd.providers.demo.foreign import call, foreign, mentioned
from chatd.providers.demo.repair import repair
from chatd.providers.demo.room import run
from chatd.providers.demo.turn import Turn, Used, prompts, read_turn

SLOW: Final = 0.1
_QUOTED: Final = 600
_SHOWN: Final = 2000
_ASKS_FOR_SUMMARY: Final = re.compile(r"^write a summary\b", re.IGNORECASE | re.MULTILINE)


def scene_for(request: ModelRequest, *, seed: int, failures_left: int) -> Scene:
    """`failures_left`: how often it still has to fail if it is asked for an error."""
    turn = read_turn(request)
    if request.tool_choice == "none" and _ASKS_FOR_SUMMARY.search(turn.prompt):
        return _summary(request)
    if _says(turn, r"errors?|fail(?:s|ure)?") and not _says(turn, r"failing test|fix"):
        return _error(turn, failures_left)
    if (scene := _foreign(turn)) is not None:
        return scene
    for pattern, scene in _SCENES:
        if _says(turn, pattern):
            return scene(turn)
    if _says(turn, r"long|essay|story"):
        return _long(random.Random(f"{seed}:{turn.prompt}"))
    others = [] if turn.used else foreign(turn)
    return call(others[0], turn) if others else _plain(turn)


def _foreign(turn: Turn) -> Scene | None:
    """A tool that no script knows: its result is shown, or it is called if it was spoken of."""
    if turn.used:
        last = turn.used[-1]
        return _shown(last) if last.name in {tool.name for tool in foreign(turn)} else None
    tool = mentioned(turn)
    return None if tool is None else call(tool, turn)


def _says(turn: Turn, pattern: str) -> bool:
    return re.search(rf"\b(?:{pattern})\b", turn.prompt, re.IGNORECASE) is not None


def _paced(pace: float) -> Callable[[Turn], Scene]:
    def scene(_turn: Turn) -> Scene:
        how = "slowly" if pace else "as fast as I can"
        text = f"Now I speak {how}, so that you can see how an answer arrives.\n\n{words.ITEMS}"
        return Scene(beats=(Say(text=text),), pace=pace)

    return scene


def _thinking(_turn: Turn) -> Scene:
    return Scene(beats=(Think(text=words.THOUGHTS), Say(text=words.THOUGHT_ANSWER)))


def _text(text: str) -> Callable[[Turn], Scene]:
    return lambda _turn: say(text)


def _sources(_turn: Turn) -> Scene:
    return Scene(
        beats=(
            Say(text="An answer can name its sources. These two are examples and lead nowhere."),
            Cite(url="https://example.org/durable-chats", title="Durable chats, an example"),
            Cite(url="https://example.com/one-writer", title="One writer, an example"),
        )
    )


def _refusal(_turn: Turn) -> Scene:
    return Scene(beats=(Refuse(why="You asked the demo model to refuse, and so it does."),))


# Tools


def _tool(turn: Turn) -> Scene:
    if turn.has("execute"):
        return _command(turn, "date && uname -sr && pwd", "I'll run a command in the workspace.")
    if turn.used:
        return _shown(turn.used[-1])
    if others := foreign(turn):
        return call(others[0], turn)
    if turn.has("list_templates"):
        return _templates(turn)
    return say(
        "This chat offers me no tool that I know how to use. Most come with workspaces, which this"
        " server may have switched off: see `workspaces.enabled` among its settings."
    )


def _command(turn: Turn, command: str, words: str) -> Scene:
    return run(turn, command, words) or _shown(turn.used[-1])


def _listing(turn: Turn) -> Scene:
    if _says(turn, "templates?"):
        return _templates(turn)
    if not _says(turn, "files?|director(?:y|ies)|folders?|workspace"):
        return say(words.ITEMS)
    if not turn.has("execute"):
        return _tool(turn)
    return _command(turn, "pwd && ls -la | head -n 50", "I'll list what is in the workspace.")


def _templates(turn: Turn) -> Scene:
    if turn.used:
        return _shown(turn.used[-1])
    if not turn.has("list_templates"):
        return say("This chat offers me no tool that lists templates.")
    return Scene(
        beats=(
            Say(text="I'll ask which templates there are."),
            Use(name="list_templates", args={}),
        )
    )


def _shown(used: Used) -> Scene:
    output = used.result.get("output")
    text = (output if isinstance(output, str) else used.text).strip()
    cut = text[:_SHOWN].replace("```", "'''")
    how = "That failed" if used.failed else "Done"
    more = "\n\nThere was more; I show the beginning." if len(text) > _SHOWN else ""
    return say(f"{how}. The tool `{used.name}` answered:\n\n```\n{cut}\n```{more}")


# Failing on request


def _error(turn: Turn, failures_left: int) -> Scene:
    if _says(turn, "auth|key|fatal|permanent"):
        fault = ProviderFault(
            message="the demo model was asked to refuse the key",
            status_code=401,
            type="authentication_error",
        )
        return Scene(beats=(Break(fault=fault),))
    if failures_left <= 0:
        return say(
            "There it is: an answer. Before it I failed, because you asked me to. Each time chatd"
            " threw away what I had begun, waited a little longer, and asked me again. Had I failed"
            " for good, you would see an error here, and could try again yourself."
        )
    if failures_left % 2 == 0:
        fault = ProviderFault(
            message="the demo model was asked to fail", status_code=529, type="overloaded_error"
        )
        return Scene(beats=(Break(fault=fault),))
    fault = ProviderFault(
        message="the demo model was asked to fail in the middle of an answer", incomplete=True
    )
    text = "This time I begin to speak, and then the line goes de"
    return Scene(beats=(Say(text=text), Break(fault=fault)))


# Talking


def _long(chance: random.Random) -> Scene:
    chapters = words.CHAPTERS.strip().split("\n\n")
    chance.shuffle(chapters)
    told = "\n\n".join(
        f"## {number}. {chapter.replace(chr(10), chr(10) * 2, 1)}"
        for number, chapter in enumerate(chapters * 3, 1)
    )
    return say(f"This will be long. Interrupt me whenever you like.\n\n{told}\n\nThat was long.")


def _plain(turn: Turn) -> Scene:
    said = turn.prompt[:_QUOTED] + ("…" if len(turn.prompt) > _QUOTED else "")
    quote = "\n".join(f"> {line}" for line in said.splitlines()) or "> (nothing)"
    if turn.files:
        quote += f"\n\nand attached {', '.join(turn.files[:5])}."
    text = words.WELCOME if turn.number <= 1 else words.AGAIN
    return say(text.format(quote=quote))


def _summary(request: ModelRequest) -> Scene:
    """For a chat that grew too long. What people asked for is all that a script can know."""
    asked = [said for text in prompts(request) for said in _asked(text)]
    listed = "\n".join(f"- {text[:200]}" for text in asked[-20:]) or "- (nothing)"
    last = asked[-1][:500] if asked else "(nothing)"
    return say(
        f"Goal: {last}\n\nFacts: the chat was with the demo model, which plays scripts. People"
        f" said, oldest first:\n{listed}\n\nProgress: all but the last was answered.\n\n"
        f"Next: {last}"
    )


def _asked(text: str) -> list[str]:
    """What a person asked for in this message: an earlier summary has listed it, and the request
    for this one is nobody's."""
    if text.startswith(PREFIX.strip()):
        return [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]
    own = _ASKS_FOR_SUMMARY.split(text)[0].strip()
    return [own] if own else []


# The first that fits is played. Words that change what is done come before words that only
# change how it is said.
_SCENES: Final[tuple[tuple[str, Callable[[Turn], Scene]], ...]] = (
    (r"fix|repair|failing test", repair),
    (r"list|ls", _listing),
    (r"tools?|command|run|execute", _tool),
    (r"think|thinking|reason|reasoning|puzzle", _thinking),
    (r"table|markdown", _text(words.MARKDOWN)),
    (r"code|function|program", _text(words.CODE)),
    (r"sources?|search|cite", _sources),
    (r"refuse|refusal", _refusal),
    (r"slow|slowly", _paced(SLOW)),
    (r"fast|quick|quickly", _paced(0.0)),
)
