"""Replies about users, sessions, tokens and groups, made from their rows."""

from msgspec import convert, structs

from chatd.api.schemas.accounts import (
    GroupReply,
    SessionReply,
    TokenReply,
    UserReply,
)
from chatd.domain.access.accounts import Credential, Group, User
from chatd.domain.access.secret_text import token_label
from chatd.domain.ids import CredentialId


def user_reply(user: User) -> UserReply:
    return UserReply(**structs.asdict(user))


def group_reply(group: Group) -> GroupReply:
    return GroupReply(**structs.asdict(group))


def session_reply(session: Credential, current: CredentialId | None) -> SessionReply:
    return SessionReply(
        id=session.id,
        is_current=session.id == current,
        created_at=session.created_at,
        last_used_at=session.last_used_at,
        expires_at=session.expires_at,
        ends_at=session.ends_at,
        ip=session.ip,
        user_agent=session.user_agent,
    )


def token_reply(token: Credential) -> TokenReply:
    fields = {"prefix": token_label(token.id)} | structs.asdict(token)
    return convert(fields, TokenReply)
