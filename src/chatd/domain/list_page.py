"""What every list takes and replies."""

from typing import Annotated, Final, Generic, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")

MAX_PAGE_SIZE: Final = 200
MAX_CURSOR_CHARS: Final = 512

PageSize = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_PAGE_SIZE,
        description="The most items that the page has.",
        examples=[50],
    ),
]
CursorParameter = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_CURSOR_CHARS,
        description="The `next_cursor` of the previous page. Without it: the first page.",
        examples=["pJ3rU0nYb9JbMSwiMDE5M2M1YTAiXQ"],
    ),
]


class ListQuery(Struct, frozen=True, kw_only=True):
    limit: PageSize = 50
    cursor: CursorParameter | None = None


class ListPage(Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list."""

    items: Annotated[tuple[T, ...], Meta(description="The items of this page.")]
    has_more: Annotated[
        bool, Meta(description="Whether there are more items after this page.", examples=[True])
    ]
    next_cursor: Annotated[
        str | None,
        Meta(
            description="The `cursor` of the next page; null on the last page.",
            examples=["pJ3rU0nYb9JbMSwiMDE5M2M1YTAiXQ"],
        ),
    ]
