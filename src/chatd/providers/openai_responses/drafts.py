"""What of an answer still stands together when it goes back.

The API refuses reasoning without the item after it, and an item that came after reasoning
without that. An item that lost its reasoning goes without the id by which the API would know; a
search, which cannot, is left out.
"""

from collections.abc import Sequence

from msgspec import Struct

from chatd.providers.openai_responses.sent import InputItem


class DraftItem(Struct, frozen=True, kw_only=True):
    """An item of an answer. `bare` is its form without its id, if it can do without.

    `id` is that of reasoning, `after` that of the reasoning before the item.
    """

    item: InputItem
    bare: InputItem | None
    after: str | None = None
    id: str | None = None
    reasoning: bool = False


def standing_together(drafts: Sequence[DraftItem]) -> list[InputItem]:
    """Backwards: reasoning stays if something that stays came after it."""
    needed: set[str] = set()
    standing: set[str] = set()
    for draft in reversed(drafts):
        if draft.reasoning and draft.id is not None:
            if draft.id not in needed:
                continue
            standing.add(draft.id)
        if draft.after is not None:
            needed.add(draft.after)
    items: list[InputItem] = []
    for draft in drafts:
        if draft.reasoning:
            item = draft.item if draft.id is None or draft.id in standing else None
        else:
            item = draft.item if draft.after is None or draft.after in standing else draft.bare
        if item is not None:
            items.append(item)
    return items
