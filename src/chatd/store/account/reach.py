"""Which rows of accounts an actor reaches: all, or the user's own."""

from chatd.domain.access.permissions import Actor, has_permission, row_filter
from chatd.domain.ids import UserId


def readable_user(actor: Actor) -> UserId | None:
    """None for all users; else the only one. Raises Forbidden."""
    if has_permission(actor, "config.read"):
        return None
    return row_filter(actor, "account.read").owner_id


def writable_user(actor: Actor) -> UserId | None:
    """None for all users; else the only one. Raises Forbidden."""
    if has_permission(actor, "config.write"):
        return None
    return row_filter(actor, "account.write").owner_id
