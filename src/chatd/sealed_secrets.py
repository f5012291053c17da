"""Secrets at rest, sealed with AES-256-GCM.

A sealed text names its key, so that keys can be replaced. Its context (table, column and row) is
authenticated and not stored: a sealed text that is copied to another row does not open. At the end
are the files that only the user of this process may read.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from chatd.domain.errors import ChatdError, Conflict

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
KEY_ID_CHARS: Final = 12
FORMAT: Final = "sealed1"
_SEALED: Final = re.compile(rf"{FORMAT}\.(?P<key>[0-9a-f]{{{KEY_ID_CHARS}}})\.(?P<data>[\w-]+)")
_CHECK_TEXT: Final = "chatd"


class SecretUnreadable(Conflict):
    """A stored secret cannot be opened or sealed here."""

    code = "secret_unreadable"


class SecretKeyMissing(SecretUnreadable):
    code = "secret_key_missing"


class InvalidSecretKey(ChatdError):
    """The text of a key is not a key. The message never contains it."""

    code = "invalid_secret_key"


class SecretKey:
    """One key. Its id follows from it and says nothing about it. Hidden in repr; cannot be
    pickled."""

    __slots__ = ("_cipher", "_value", "id")

    def __init__(self, value: bytes) -> None:
        if len(value) != KEY_BYTES:
            raise InvalidSecretKey(
                f"a key is {KEY_BYTES} bytes in base64, as openssl rand -base64 {KEY_BYTES} prints"
            )
        self._value = value
        self._cipher = AESGCM(value)
        self.id: Final = hmac.digest(value, b"chatd key id", hashlib.sha256).hex()[:KEY_ID_CHARS]

    def encode(self) -> str:
        """The key as text, for the key file."""
        return base64.urlsafe_b64encode(self._value).decode()

    def seal(self, plaintext: str, context: str) -> str:
        nonce = os.urandom(NONCE_BYTES)
        data = nonce + self._cipher.encrypt(nonce, plaintext.encode(), self._bound_to(context))
        return f"{FORMAT}.{self.id}.{base64.urlsafe_b64encode(data).decode().rstrip('=')}"

    def open(self, data: bytes, context: str) -> str:
        """Raises SecretUnreadable."""
        nonce, sealed = data[:NONCE_BYTES], data[NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, sealed, self._bound_to(context)).decode()
        except (InvalidTag, ValueError):
            text = "A stored secret was changed or belongs to another row. Enter it again."
            raise SecretUnreadable(text) from None

    def _bound_to(self, context: str) -> bytes:
        return f"{FORMAT}.{self.id}.{context}".encode()

    def __repr__(self) -> str:
        return f"SecretKey({self.id})"

    def __reduce__(self) -> str:
        raise TypeError("a key cannot be pickled")


class KeyRing:
    """The keys that this process holds. The database says which one is `current`: it seals; all
    of them open.

    `remedy` ends the error about a missing key: how this process gets it.
    """

    def __init__(
        self, keys: Iterable[SecretKey] = (), current: str | None = None, *, remedy: str = ""
    ) -> None:
        self._keys = {key.id: key for key in keys}
        self.current = current
        self._remedy = remedy

    @property
    def key_ids(self) -> Sequence[str]:
        return tuple(self._keys)

    def replace(self, keys: Iterable[SecretKey], current: str | None) -> None:
        self._keys = {key.id: key for key in keys}
        self.current = current

    def seal(self, plaintext: str, context: str) -> str:
        """Raises SecretKeyMissing."""
        return self._find(self.current).seal(plaintext, context)

    def open(self, sealed: str, context: str) -> str:
        """Raises SecretKeyMissing, and SecretUnreadable for a changed or moved text."""
        match = _SEALED.fullmatch(sealed)
        if match is None:
            raise SecretUnreadable("A stored secret is not in chatd's format. Enter it again.")
        key = self._find(match["key"])
        return key.open(_decode(match["data"]), context)

    def _find(self, key_id: str | None) -> SecretKey:
        found = self._keys.get(key_id or "")
        if found is None:
            named = f"key {key_id}" if key_id else "a key"
            text = f"This server does not hold {named}, which the stored secrets need."
            raise SecretKeyMissing(f"{text} {self._remedy}".strip())
        return found

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)}; current {self.current})"


def seal_context(table: str, column: str, row_id: UUID | str) -> str:
    """What a sealed value of that row is bound to. `store.sealed_columns` lists all columns."""
    return f"{table}.{column}:{row_id}"


def new_key() -> SecretKey:
    return SecretKey(os.urandom(KEY_BYTES))


def parse_keys(text: str) -> list[SecretKey]:
    """Keys of base64, separated by commas or white space. Raises InvalidSecretKey."""
    keys = [_parse_key(word) for word in text.replace(",", " ").split()]
    return list({key.id: key for key in keys}.values())


def _parse_key(word: str) -> SecretKey:
    try:
        value = _decode(word.rstrip("="))
    except SecretUnreadable:
        value = b""
    return SecretKey(value)


def _decode(text: str) -> bytes:
    """Base64 of either alphabet, without padding."""
    plain = text.replace("+", "-").replace("/", "_")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise SecretUnreadable("A stored secret is damaged. Enter it again.") from None


def check_value(key: SecretKey) -> str:
    """Stored beside the key's id: only the same key opens it."""
    return key.seal(_CHECK_TEXT, seal_context("secret_keys", "check_value", key.id))


def fits_check_value(key: SecretKey, stored: str) -> bool:
    ring = KeyRing([key], key.id)
    try:
        opened = ring.open(stored, seal_context("secret_keys", "check_value", key.id))
    except SecretUnreadable:
        return False
    return hmac.compare_digest(opened, _CHECK_TEXT)


# A secret in a file: the first process creates it, all others read it.
#
# Owns three guarantees: processes that start at the same time agree on one secret, only this
# account can read it, and a secret that a caller has used survives a loss of power. The caller
# decides what the secret is for and which characters it may have.

MAX_SECRET_BYTES: Final = 4096
"""chatd reads no more of a secret file; its own secrets are shorter."""


def load_or_create(path: Path, make: Callable[[], str]) -> str:
    """Return the file's content, stripped; write the result of `make` first if there is no file.
    Raises OSError."""
    if not path.exists():
        _create(path, make())
    with path.open("rb") as file:
        return _content(file)


def read(path: Path) -> str | None:
    """The file's content, stripped; None if there is no file. Raises OSError."""
    try:
        with path.open("rb") as file:
            return _content(file)
    except FileNotFoundError:
        return None


def _content(file: BinaryIO) -> str:
    return file.read(MAX_SECRET_BYTES).decode(errors="replace").strip()


def replace(path: Path, text: str) -> None:
    """Atomic: a reader sees the old content or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _write_new(path, text)
    try:
        new.replace(path)
        _sync_directory(path)
    finally:
        new.unlink(missing_ok=True)


def _create(path: Path, line: str) -> None:
    """Atomic, and never replaces an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _write_new(path, line)
    try:
        _link(new, path)
    finally:
        new.unlink(missing_ok=True)


def _write_new(path: Path, text: str) -> Path:
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return new


def _link(new: Path, path: Path) -> None:
    # Another process may have created the file first; then its secret counts. Sync the directory
    # in both cases: that process may not have reached its own fsync yet.
    with suppress(FileExistsError):
        os.link(new, path)
    _sync_directory(path)


def _sync_directory(path: Path) -> None:
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
