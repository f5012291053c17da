"""A program that knows only the description asks for everything in it: the answers are as
described, every error has the one shape, and nothing makes the server fail."""

from pathlib import Path

from tests.api.described import Effort, a_busy_house, ask_everything


async def test_the_api_is_as_its_description_says(dsn: str, tmp_path: Path) -> None:
    """make fuzz asks more."""
    async with a_busy_house(dsn) as house:
        effort = Effort(cases=2, phases="fuzzing", seed=3, arguments=("--no-shrink",))
        code, said = await ask_everything(house, effort, tmp_path)
        assert code == 0, said
        assert "Tested: 33" in said, said
