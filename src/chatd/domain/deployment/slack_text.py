"""Text for Slack and from it: Markdown to mrkdwn, cut to the limits of Slack's messages, and the
text of a message in plain words. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from chatd.domain.text import clip, model_text

MAX_SECTION_CHARS: Final = 3000
"""Slack refuses a longer text in a block."""
MAX_BUTTON_CHARS: Final = 75
MAX_BLOCKS: Final = 50
SECTIONS_PER_MESSAGE: Final = 10
"""Of an answer; Slack takes 50 blocks."""
MAX_ANSWER_SECTIONS: Final = 30
"""A longer answer ends with a note that the rest is in chatd."""
_MAX_ANSWER_CHARS: Final = MAX_ANSWER_SECTIONS * MAX_SECTION_CHARS
MAX_FALLBACK_CHARS: Final = 300
"""Of what a notification shows of a message."""

Block = Mapping[str, object]

_FENCE: Final = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_HEADING: Final = re.compile(r"\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_BULLET: Final = re.compile(r"(\s*)[-*+]\s+(\[[ xX]\]\s+)?(.*)$")
_RULE: Final = re.compile(r"\s{0,3}([-*_])(\s*\1){2,}\s*$")
_CODE: Final = re.compile(r"(`+)(.{1,2000}?)\1")
_LINK: Final = re.compile(
    r"!?\[([^\[\]\n]{0,500})\]\((https?://[^\s)\[]{1,2000}|mailto:[^\s)\[]{1,300})"
    r"(?:\s{1,9}\"[^\"]{0,300}\")?\)"
)
_BARE_URL: Final = re.compile(r"https?://[^\s<>|\"')\]\x00]+")
# Their length is bounded, and so is the time that a line takes.
_BOLD: Final = re.compile(
    r"\*\*(?=\S)(.{1,300}?)(?<=\S)\*\*|(?<!\w)__(?=\S)(.{1,300}?)(?<=\S)__(?!\w)"
)
_ITALIC: Final = re.compile(r"(?<![\w*])\*(?=[^\s*])(.{1,300}?)(?<=[^\s*])\*(?![\w*])")
_STRIKE: Final = re.compile(r"~~(?=\S)(.{1,300}?)(?<=\S)~~")
_KEPT: Final = re.compile("\x00(\\d+)\x00")
_REFERENCE: Final = re.compile(r"<([^<>]*)>")
_BOLD_MARK: Final = "\x01"


def escape(text: str) -> str:
    """No person, channel or group is mentioned by it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mrkdwn(markdown: str) -> str:
    """What Slack shows nearly as Markdown would look."""
    lines: list[str] = []
    fence = ""
    table: list[str] = []
    source = model_text(markdown).replace("\x01", "").replace("\r\n", "\n").split("\n")
    for number, line in enumerate(source):
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not line.strip().strip("`~"):
                lines.append("```")
                fence = ""
            else:
                lines.append(escape(line).replace("```", "'''"))
            continue
        is_table = "|" in line and (
            bool(table) or (number + 1 < len(source) and _is_table_rule(source[number + 1]))
        )
        if is_table:
            table.append(line)
            continue
        lines += _table(table)
        table = []
        if found:
            fence = found[1]
            lines.append("```")
        else:
            lines.append(_line(line))
    lines += _table(table)
    if fence:
        lines.append("```")
    return "\n".join(lines).strip("\n")


def _is_table_rule(line: str) -> bool:
    """The line between the heads of a table and its rows."""
    return 0 <= line.find("-") < line.rfind("|") and not line.strip(" \t:|-")


def _table(rows: Sequence[str]) -> list[str]:
    """Slack has no tables: their columns are aligned as text."""
    if not rows:
        return []
    cells = [
        [cell.strip() for cell in row.strip().strip("|").split("|")]
        for row in rows
        if not _is_table_rule(row)
    ]
    columns = max(map(len, cells), default=0)
    widths = [
        max((len(row[i]) for row in cells if i < len(row)), default=0) for i in range(columns)
    ]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in cells
    ]
    return ["```", *(escape(row).replace("```", "'''") for row in shown), "```"]


def _line(line: str) -> str:
    if _RULE.match(line):
        return "———"
    if heading := _HEADING.match(line):
        plain = heading[1].replace("**", "").replace("__", "")
        return f"*{_inline(plain)}*" if plain else ""
    if bullet := _BULLET.match(line):
        box = bullet[2] or ""
        mark = "•" if not box else "☑" if "x" in box.lower() else "☐"
        return f"{bullet[1]}{mark} {_inline(bullet[3])}"
    quote = re.match(r"(\s{0,3}(?:>\s?)+)(.*)$", line)
    if quote:
        return f"> {_inline(quote[2])}"
    return _inline(line)


def _inline(line: str) -> str:
    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return f"\x00{len(kept) - 1}\x00"

    def link(found: re.Match[str]) -> str:
        url, label = found[2], found[1].replace("|", "¦").strip()
        target = escape(url).replace("|", "%7C")
        return keep(f"<{target}|{escape(label)}>" if label else f"<{target}>")

    def bare(found: re.Match[str]) -> str:
        url = found[0].rstrip(".,;:!?*_~`")
        return keep(f"<{escape(url).replace('|', '%7C')}>") + found[0][len(url) :]

    line = _CODE.sub(lambda found: keep(f"`{escape(found[2]).replace('`', chr(39))}`"), line)
    line = _LINK.sub(link, line)
    line = escape(_BARE_URL.sub(bare, line))
    line = _BOLD.sub(lambda found: f"{_BOLD_MARK}{found[1] or found[2]}{_BOLD_MARK}", line)
    line = _ITALIC.sub(r"_\1_", line)
    line = _STRIKE.sub(r"~\1~", line).replace(_BOLD_MARK, "*")
    for _ in range(3):  # a link may be in a link's label, code in it
        line = _KEPT.sub(lambda found: kept[int(found[1])], line)
    return line


def split_text(text: str, limit: int = MAX_SECTION_CHARS) -> list[str]:
    """Pieces of at most `limit` characters of mrkdwn, cut at lines if possible. A code block that
    is cut is closed, and opened again in the next piece."""
    pieces: list[str] = []
    current: list[str] = []
    size, in_code = 0, False

    def flush() -> None:
        nonlocal current, size
        body = [*current, "```"] if in_code else current
        if any(line.strip() for line in current if line != "```"):
            pieces.append("\n".join(body).strip("\n"))
        current = ["```"] if in_code else []
        size = 4 if in_code else 0

    room = limit - 10  # for the marks of code
    for line in text.split("\n"):
        for part in _cut_line(line, room):
            if size + len(part) + 1 > room:
                flush()
            current.append(part)
            size += len(part) + 1
            if part == "```":
                in_code = not in_code
    in_code = False
    flush()
    return pieces


def _cut_line(line: str, limit: int) -> list[str]:
    """Not within a link or an escaped character."""
    parts: list[str] = []
    while len(line) > limit:
        at = line.rfind(" ", limit // 2, limit)
        at = limit if at < 0 else at
        opened = line.rfind("<", 0, at)
        if opened > line.rfind(">", 0, at) and opened > 0:
            at = opened
        entity = line.rfind("&", max(at - 5, 0), at)
        if entity > 0 and ";" not in line[entity:at]:
            at = entity
        parts.append(line[:at])
        line = line[at:].lstrip(" ")
    return [*parts, line]


def plain_text(text: str) -> str:
    """What a person wrote, from the text of an event."""

    def shown(found: re.Match[str]) -> str:
        body, _, label = found[1].partition("|")
        if body.startswith(("@", "#", "!")):
            sign = "#" if body[0] == "#" else "@"
            name = label.lstrip("@#") or body[1:].partition("^")[0]
            return f"{sign}{name}"
        url = body.removeprefix("mailto:")
        return url if label in ("", url) else f"{label} ({url})"

    told = _REFERENCE.sub(shown, text)
    return model_text(told.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")).strip()


# Blocks


def section(text: str) -> Block:
    """`text` is mrkdwn within the limit."""
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def code_sections(text: str) -> list[Block]:
    """All of the text, as code."""
    shown = escape(model_text(text)).replace("```", "'''")
    return [section(piece) for piece in split_text(f"```\n{shown}\n```")]


def button(action: str, label: str, value: str, style: str = "") -> Block:
    made: dict[str, object] = {
        "type": "button",
        "action_id": action,
        "text": {"type": "plain_text", "text": clip(label, MAX_BUTTON_CHARS), "emoji": False},
        "value": value,
    }
    return {**made, "style": style} if style else made


def link_button(action: str, label: str, url: str) -> Block:
    text = {"type": "plain_text", "text": label, "emoji": False}
    return {"type": "button", "action_id": action, "text": text, "url": url}


def actions(buttons: Sequence[Block]) -> Block:
    return {"type": "actions", "elements": list(buttons)}


def answer_messages(markdown: str) -> list[list[Block]]:
    """The blocks of each message of an answer."""
    read = markdown[:_MAX_ANSWER_CHARS]
    pieces = split_text(mrkdwn(read))
    if len(pieces) > MAX_ANSWER_SECTIONS or len(read) < len(markdown):
        pieces = [*pieces[: MAX_ANSWER_SECTIONS - 1], "_The rest of the answer is in chatd._"]
    blocks = [section(piece) for piece in pieces]
    step = SECTIONS_PER_MESSAGE
    return [blocks[start : start + step] for start in range(0, len(blocks), step)]
