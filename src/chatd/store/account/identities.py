"""Identities of OpenID providers and their users, and answers of providers that were used."""

from typing import Final, LiteralString

from chatd.domain.access.accounts import Identity
from chatd.domain.access.permissions import SystemActor
from chatd.domain.ids import UserId
from chatd.store.conn import Conn, strip_unstorable

FIND: Final[LiteralString] = """
    SELECT user_id FROM user_identities WHERE issuer = $1 AND subject = $2"""
INSERT: Final[LiteralString] = """
    INSERT INTO user_identities (issuer, subject, user_id, email) VALUES ($1, $2, $3, $4)"""
# Kept with the sign-in attempts, which are deleted after ten minutes: as long as an answer lasts.
USE_ANSWER: Final[LiteralString] = """
    INSERT INTO sign_in_attempts (bucket, tokens) VALUES ($1, 0)
    ON CONFLICT (bucket) DO NOTHING RETURNING true"""


async def find(conn: Conn, actor: SystemActor, issuer: str, subject: str) -> UserId | None:
    del actor  # only a sign-in looks for identities
    found = await conn.fetchval(FIND, issuer, strip_unstorable(subject))
    return None if found is None else UserId(found)


async def link(conn: Conn, actor: SystemActor, user_id: UserId, identity: Identity) -> None:
    """Raises DuplicateRow if another sign-in has linked the identity meanwhile."""
    del actor
    subject = strip_unstorable(identity.subject)
    await conn.execute(INSERT, identity.issuer, subject, user_id, identity.email)


async def use_answer(conn: Conn, state_digest: bytes) -> bool:
    """False if an answer with this state was used before, on any replica."""
    return bool(await conn.fetchval(USE_ANSWER, f"oidc:{state_digest.hex()}"))
