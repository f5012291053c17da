"""Bodies of the demo. Docstrings here are part of the OpenAPI document."""

from typing import Annotated

from msgspec import Struct

from chatd.domain.description import describe


class DemoReply(Struct, frozen=True, kw_only=True):
    """Whether a worker can be killed here, to see that another goes on."""

    available: Annotated[
        bool,
        describe(
            "Whether this server and caller may play the demo: on this machine, as an"
            " administrator, while the demo model is the default."
        ),
    ]
    worker_running: Annotated[bool, describe("Whether a worker process runs that may be killed.")]
