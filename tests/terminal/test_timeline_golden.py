"""Every kind of row as text, at two widths."""

from typing import Final

import msgspec
import pytest
from rich.cells import cell_len

from chatd.terminal.timeline.tool_cards import KNOWN_TOOLS
from tests.terminal.timeline_golden import GOLDEN, WIDTHS, Golden, drawn
from tests.terminal.timeline_scenes import SCENES, Script


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_a_chat_is_drawn_as_its_golden_text(golden: Golden) -> None:
    assert golden.draw() == golden.path.read_text()


@pytest.mark.parametrize("width", [20, 40, *WIDTHS])
@pytest.mark.parametrize("scene", SCENES)
def test_no_line_is_wider_than_the_timeline(scene: str, width: int) -> None:
    text = drawn(SCENES[scene], width, is_open=True)
    assert max(map(cell_len, text.split("\n"))) <= width


_ODD: Final = (
    *("null", "7", '"text"', "[]", '["x"]', "{}", '{"files":3}', '{"files":["x",{"path":4}]}'),
    *('{"output":[]}', '{"questions":[{}],"answers":[3]}'),
)


@pytest.mark.parametrize("name", [*KNOWN_TOOLS, "unknown__tool"])
@pytest.mark.parametrize("text", _ODD)
def test_a_call_whose_arguments_and_result_have_any_shape_is_shown(name: str, text: str) -> None:
    value: object = msgspec.json.decode(text)
    for is_error in (True, False):
        script = Script().ran("c", name, value, value, is_error=is_error)
        assert len(drawn(script.chat(), 80, is_open=True).strip()) > 2
