"""A program that knows only the description asks for everything in it: the answers are as
described, every error has the one shape, and nothing makes the server fail."""

from pathlib import Path

import pytest

from tests.api.described import Effort, a_busy_house, ask_everything
from tests.support.any_request import operations


@pytest.mark.promise("P15")
@pytest.mark.timeout(240)
async def test_the_api_is_as_its_description_says(dsn: str, tmp_path: Path) -> None:
    """make fuzz asks more. Four seconds of another process, which a busy machine stretches."""
    async with a_busy_house(dsn) as house:
        effort = Effort(cases=2, phases="fuzzing", seed=3, arguments=("--no-shrink",))
        code, said = await ask_everything(house, effort, tmp_path)
        assert code == 0, said
        document = (await house.front.open_page("/api/v1/openapi.json")).json
        assert f"Tested: {len(operations(document))}\n" in said, said
