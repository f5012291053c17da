"""Joins reads that follow each other, and sets lines of finished calls close together."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from chatd.terminal.timeline.rows.row import ReadsRow, Row, ToolRow
from chatd.terminal.timeline.rows.tool_call import ToolCall

_READS: Final = frozenset({"read_file"})
_CARDS: Final = frozenset(
    {
        "write_file",
        "edit_files",
        "create_workspace",
        "start_workspace",
        "stop_workspace",
        "spawn_agent",
        "spawn_computer_use_agent",
        "propose_plan",
        "ask_user_question",
        "attach_file",
    }
)


def is_read(call: ToolCall) -> bool:
    return call.state == "done" and call.name in _READS and not call.is_media


def is_quiet(call: ToolCall) -> bool:
    """A call that went well and only read is one quiet line. Everything else is a card."""
    return call.state == "done" and call.name not in _CARDS and not call.is_media


def _is_line(row: Row | None) -> bool:
    return isinstance(row, ReadsRow) or (isinstance(row, ToolRow) and is_quiet(row.call))


class RowList:
    """Rows that are added to settled ones. A read may be joined to the last of these."""

    def __init__(self, settled: tuple[Row, ...]) -> None:
        self._settled = settled
        self._rows: list[Row] = []
        self._replaces = False

    @property
    def last(self) -> Row | None:
        if self._rows:
            return self._rows[-1]
        return self._settled[-1] if self._settled else None

    def add_all(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        last = self.last
        if not isinstance(row, ToolRow) or not is_read(row.call):
            is_tight = _is_line(row) and _is_line(last)
            self._rows.append(replace(row, is_tight=True) if is_tight else row)
        elif isinstance(last, ReadsRow):
            self._replace_last(replace(last, calls=(*last.calls, row.call)))
        else:
            self._rows.append(
                ReadsRow(
                    key=row.key,
                    message_id=row.message_id,
                    is_tight=_is_line(last),
                    calls=(row.call,),
                )
            )

    def _replace_last(self, row: Row) -> None:
        if self._rows:
            self._rows[-1] = row
        else:
            self._rows.append(row)
            self._replaces = True

    def joined(self) -> tuple[Row, ...]:
        settled = self._settled[:-1] if self._replaces else self._settled
        return (*settled, *self._rows)
