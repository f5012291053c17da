"""Reasoning in pieces, as gateways send it, put together to be given back.

Pieces of one text come one by one; a signature or sealed data comes once. The
order is kept, and so is every field that we do not know.
"""

import msgspec
from msgspec import Raw

from chatd.domain.text import decode_lenient, replace_json_surrogates
from chatd.providers.openai_chat import wire
from chatd.providers.reading import UNREADABLE, read

_FIELDS = msgspec.json.Decoder(dict[str, object])
_GROWING = {"reasoning.text": "text", "reasoning.summary": "summary"}


class Details:
    def __init__(self) -> None:
        self._pieces: list[dict[str, object]] = []

    def add(self, details: tuple[Raw, ...]) -> str:
        """Returns what can be read of them."""
        told = ""
        for raw in details:
            try:
                piece = read(_FIELDS, raw)
                known = read(wire.DETAIL, raw)
            except UNREADABLE:
                continue
            told += known.text or known.summary or ""
            if not self._grown(piece):
                self._pieces.append(piece)
        return told

    def sealed(self) -> tuple[Raw, ...]:
        return tuple(
            Raw(replace_json_surrogates(decode_lenient(msgspec.json.encode(piece))).encode())
            for piece in self._pieces
        )

    def _grown(self, piece: dict[str, object]) -> bool:
        """Joined to the last piece, if it goes on with that."""
        if not self._pieces:
            return False
        last = self._pieces[-1]
        growing = _GROWING.get(str(piece.get("type")))
        if growing is None or any(last.get(key) != piece.get(key) for key in ("type", "index")):
            return False
        if None is not last.get("id") != piece.get("id") is not None:
            return False
        for key, value in piece.items():
            before = last.get(key)
            if key == growing and isinstance(value, str) and isinstance(before, str):
                last[key] = before + value
            elif value is not None:
                last[key] = value
        return True
