"""What a call must give: the error that it raises, or a value that is not None."""

from collections.abc import Awaitable
from typing import TypeVar

import pytest

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


async def raised(kind: type[E], call: Awaitable[object]) -> E:
    """The error that the call raises."""
    with pytest.raises(kind) as error:
        await call
    return error.value


def present(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value
