"""Where a failure stops: work whose bugs must not take down whoever runs it.

The only place in this room that catches everything. Being cancelled is not a failure.
"""

from collections.abc import Awaitable, Callable


async def contained(work: Awaitable[object], failed: Callable[[Exception], None]) -> bool:
    """True if the work was done; else `failed` was told why it was not."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - this is the wall
        failed(error)
        return False
    return True
