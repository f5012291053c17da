"""The work of `chatd tokens`: API tokens of the user."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import msgspec

from chatd.cli.api_session import UsageProblem
from chatd.cli.output import print_json, print_notice, print_table, print_text, short_time
from chatd.cli.run.request import read_id
from chatd.client.resources import CreatedToken, Token
from chatd.client.server import ServerApi
from chatd.domain.access import TokenScope
from chatd.domain.ids import CredentialId

MAX_TOKENS: Final = 1000
_DURATION: Final = re.compile(r"(\d{1,5})\s*(h|d|w)")
_HOURS: Final = {"h": 1, "d": 24, "w": 24 * 7}
_HEADINGS: Final = ("ID", "BEGINS WITH", "USED", "EXPIRES", "MAY", "NAME")


async def create_token(
    api: ServerApi, name: str, *, scopes: Sequence[str], expires: str | None, as_json: bool
) -> None:
    """The token is the output: it cannot be shown again."""
    now = datetime.now(UTC)
    raw = await api.create_token(
        name,
        scopes=check_scopes(scopes) or None,
        expires_at=None if expires is None else read_expiry(expires, now),
    ).raw()
    if as_json:
        print_json(raw)
        return
    made = msgspec.json.decode(raw, type=CreatedToken)
    print_text(made.token)
    until = "never" if made.expires_at is None else short_time(made.expires_at, now)
    print_notice(f"Keep it now: it cannot be shown again. It expires {until}. Its id: {made.id}")


async def list_tokens(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_tokens()
    if as_json:
        print_json(await listed.raw_items(MAX_TOKENS))
        return
    now = datetime.now(UTC)
    print_table(_HEADINGS, [token_row(token, now) for token in await listed.items(MAX_TOKENS)])


def token_row(token: Token, now: datetime) -> tuple[str, ...]:
    return (
        str(token.id),
        token.prefix,
        short_time(token.last_used_at, now),
        short_time(token.expires_at, now),
        "all" if token.scopes is None else " ".join(token.scopes),
        token.name,
    )


async def revoke_token(api: ServerApi, token_id: str, *, as_json: bool) -> None:
    if (found := read_id(token_id)) is None:
        raise UsageProblem(f"{token_id!r} is no id of a token; chatd tokens list shows them")
    await api.revoke_token(CredentialId(found))
    if as_json:
        print_json({"revoked": token_id})
        return
    print_notice(f"revoked {token_id}")


def check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Raises UsageProblem."""
    known = get_args(TokenScope)
    if unknown := [scope for scope in scopes if scope not in known]:
        raise UsageProblem(f"--scope {unknown[0]!r}: choose among {', '.join(known)}")
    return tuple(scopes)


def read_expiry(text: str, now: datetime) -> datetime:
    """After a time such as `90d`, or on a day such as `2027-01-31`. Raises UsageProblem."""
    if (found := _DURATION.fullmatch(text.strip())) is not None:
        return now + timedelta(hours=int(found[1]) * _HOURS[found[2]])
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageProblem(f"--expires {text!r}: write 90d, 12h, 4w or 2027-01-31") from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    if when <= now:
        raise UsageProblem(f"--expires {text!r}: this time has passed")
    return when
