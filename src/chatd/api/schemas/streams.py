"""Events of streams that are not events of a chat."""

from typing import Annotated

from msgspec import Struct

from chatd.domain.description import describe


class StreamEnded(Struct, frozen=True, kw_only=True, tag_field="type", tag="end"):
    """The last event of a stream: why the server ends it."""

    code: Annotated[
        str,
        describe(
            "Why: `going_away`, `lagged`, `not_found`, `build_ended`, `over`, `signed_out`, or an"
            " error code.",
            "going_away",
        ),
    ]
    message: Annotated[
        str,
        describe(
            "Why, for people, and what to do.",
            "The server is shutting down; connect again with the last version seen.",
        ),
    ]
