"""Computer use: pure rules between a model that sees a picture of a screen and the screen itself.

A model gets screenshots of at most the size that its vendor reads without scaling, and names points
in them. Calls of every vendor have one vocabulary, that of Anthropic's tool; the Responses API's
batches are translated where they enter, and are the only calls with `actions`.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, sqrt
from typing import Final, cast

import msgspec
from msgspec import Raw, Struct

from chatd.domain.errors import ToolError
from chatd.domain.text import parse_json

COMPUTER_TOOL: Final = "computer"
COMPUTER_MODE: Final = "computer_use"
"""The mode of a chat that has the tool."""

# Sizes


class Screen(Struct, frozen=True):
    width: int
    height: int


class PictureLimits(Struct, frozen=True, kw_only=True):
    """What a vendor's models read without scaling it themselves, and the widths that they were
    trained with, the best first."""

    long_edge: int
    pixels: int
    widths: tuple[int, ...]


ANTHROPIC_PICTURES: Final = PictureLimits(long_edge=1568, pixels=1_150_000, widths=(1280, 1024))
OPENAI_PICTURES: Final = PictureLimits(long_edge=1600, pixels=1_440_000, widths=(1600, 1440, 1280))


PICTURES_OF: Final[Mapping[str, PictureLimits]] = {
    "openai": OPENAI_PICTURES,
    "azure": OPENAI_PICTURES,
}
"""By the kind of provider, for tools of the vendor itself; all others have Anthropic's."""


def picture_size(screen: Screen, limits: PictureLimits = ANTHROPIC_PICTURES) -> Screen:
    """The size of the screenshots that a model gets, and in whose pixels it names points."""
    if _fits(screen, limits):
        return screen
    if screen.width >= screen.height:
        for width in limits.widths:
            smaller = Screen(width, max(width * screen.height // screen.width, 1))
            if width < screen.width and _fits(smaller, limits):
                return smaller
    scale = min(
        limits.long_edge / max(screen.width, screen.height),
        sqrt(limits.pixels / (screen.width * screen.height)),
    )
    return Screen(max(int(screen.width * scale), 1), max(int(screen.height * scale), 1))


def _fits(screen: Screen, limits: PictureLimits) -> bool:
    is_short = max(screen.width, screen.height) <= limits.long_edge
    return is_short and screen.width * screen.height <= limits.pixels


def map_point(point: tuple[float, float], start: Screen, end: Screen) -> tuple[int, int]:
    """The pixel of `end` at the same place as the centre of this pixel of `start`."""
    return (
        _map_number(point[0], start.width, end.width),
        _map_number(point[1], start.height, end.height),
    )


def _map_number(number: float, start: int, end: int) -> int:
    mapped = (number + 0.5) * end / start - 0.5
    return floor(min(max(mapped, 0), end - 1) + 0.5)


# Calls

ACTION_NAMES: Final = (
    "screenshot",
    "zoom",
    "cursor_position",
    "mouse_move",
    "left_click",
    "right_click",
    "middle_click",
    "double_click",
    "triple_click",
    "left_click_drag",
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "type",
    "key",
    "hold_key",
    "wait",
)
DEFAULT_WAIT_S: Final = 1.0
MAX_CALL_WAIT_S: Final = 60.0
"""Of all waits and held keys of one call."""
DEFAULT_SCROLL_CLICKS: Final = 3
SCROLL_CLICK_PIXELS: Final = 100
"""A turn of the wheel, for vendors that scroll by pixels."""
_CLICKS: Final[Mapping[str, tuple[str, int]]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
_DIRECTIONS: Final[Mapping[str, tuple[int, int]]] = {
    "up": (0, -1),
    "down": (0, 1),
    "left": (-1, 0),
    "right": (1, 0),
}


class InputAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action as the workspace agent takes it, in pixels of the screen. The numbers of a scroll
    are turns of the wheel, as text because they may be negative."""

    kind: str
    points: tuple[tuple[int, int], ...] = ()
    button: str = "left"
    is_down: bool = False
    count: int = 1
    keys: tuple[str, ...] = ()
    text: str = ""
    ms: int = 0
    across: str = "0"
    down: str = "0"


class PictureRegion(Struct, frozen=True):
    """A part of the screen that is shown enlarged."""

    x: int
    y: int
    width: int
    height: int


class ComputerCall(Struct, frozen=True, kw_only=True):
    """A call as read. Without actions it only looks. `picture` is the size of its screenshot."""

    actions: tuple[InputAction, ...]
    picture: Screen
    region: PictureRegion | None = None
    tells_pointer: bool = False


Fields = Mapping[str, object]


def read_call(args: Raw, screen: Screen) -> ComputerCall:
    """Raises ToolError that names what is wrong, before anything is done."""
    fields = _object(parse_json(args))
    listed = fields.get("actions")
    is_batch = isinstance(listed, list)
    picture = picture_size(screen, OPENAI_PICTURES if is_batch else ANTHROPIC_PICTURES)
    items = cast("list[object]", listed) if is_batch else [fields]
    reader = _CallReader(screen, picture)
    for item in items:
        reader.read(_object(item))
    waits_s = sum(action.ms for action in reader.actions) / 1000
    if waits_s > MAX_CALL_WAIT_S:
        raise ToolError(f"One call can wait {MAX_CALL_WAIT_S:g} seconds at most, not {waits_s:g}.")
    region = reader.region
    return ComputerCall(
        actions=tuple(reader.actions),
        picture=picture if region is None else _zoomed_size(region, picture),
        region=region,
        tells_pointer=reader.tells_pointer,
    )


def _object(value: object) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else cast("Fields", {})


class _CallReader:
    """Collects the actions of one call."""

    def __init__(self, screen: Screen, picture: Screen) -> None:
        self._screen = screen
        self._picture = picture
        self.actions: list[InputAction] = []
        self.region: PictureRegion | None = None
        self.tells_pointer = False

    def read(self, fields: Fields) -> None:
        name = fields.get("action")
        if name not in ACTION_NAMES:
            allowed = ", ".join(ACTION_NAMES)
            raise ToolError(f"action must be one of {allowed}, not {name!r}. Nothing was done.")
        if name in ("screenshot", "zoom", "cursor_position"):
            self.tells_pointer = self.tells_pointer or name == "cursor_position"
            self.region = self._read_region(fields) if name == "zoom" else self.region
        elif name in ("type", "key", "hold_key", "wait"):
            self._read_keyboard(cast("str", name), fields)
        else:
            self._read_mouse(cast("str", name), fields)

    def _read_keyboard(self, name: str, fields: Fields) -> None:
        if name == "type":
            self._add("type", text=_text(fields, name))
            return
        ms = 0 if name == "key" else round(_seconds(fields.get("duration")) * 1000)
        if name == "wait":
            self._add("wait", ms=ms)
            return
        for chord in _chords(_text(fields, name)):
            if name == "key":
                self._add("key", keys=chord, count=_count(fields.get("repeat"), 1))
            else:
                self._add("hold", keys=chord, ms=ms)

    def _read_mouse(self, name: str, fields: Fields) -> None:
        keys = _modifiers(fields)
        match name:
            case "mouse_move":
                self._add("move", points=(self._point(fields, "coordinate"),), keys=keys)
            case "left_click_drag":
                self._read_drag(fields, keys)
            case "left_mouse_down" | "left_mouse_up":
                is_down = name == "left_mouse_down"
                self._add("button", points=self._points(fields), is_down=is_down)
            case "scroll":
                self._read_scroll(fields, keys)
            case _:
                button, count = _CLICKS[name]
                points = self._points(fields)
                self._add("click", points=points, button=button, count=count, keys=keys)

    def _add(self, kind: str, **fields: object) -> None:
        self.actions.append(msgspec.convert({"kind": kind, **fields}, InputAction))

    def _read_drag(self, fields: Fields, keys: tuple[str, ...]) -> None:
        path = fields.get("path")
        if isinstance(path, list):
            points = tuple(self._map(point, "path") for point in cast("list[object]", path))
            if len(points) < 2:
                raise ToolError("path must have two points or more. Nothing was done.")
            self._add("drag", points=points, keys=keys)
            return
        end = self._point(fields, "coordinate")
        if fields.get("start_coordinate") is not None:
            self._add("drag", points=(self._point(fields, "start_coordinate"), end), keys=keys)
            return
        self._add("button", is_down=True)
        self._add("move", points=(end,))
        self._add("button", is_down=False)

    def _read_scroll(self, fields: Fields, keys: tuple[str, ...]) -> None:
        if "scroll_x" in fields or "scroll_y" in fields:
            across, down = (_wheel_turns(fields.get(name)) for name in ("scroll_x", "scroll_y"))
        else:
            direction = fields.get("scroll_direction") or "down"
            if direction not in _DIRECTIONS:
                raise ToolError(f"scroll_direction must be up, down, left or right: {direction!r}.")
            amount = _count(fields.get("scroll_amount"), DEFAULT_SCROLL_CLICKS)
            across, down = (sign * amount for sign in _DIRECTIONS[cast("str", direction)])
        points = self._points(fields)
        self._add("scroll", points=points, across=str(across), down=str(down), keys=keys)

    def _read_region(self, fields: Fields) -> PictureRegion:
        numbers = fields.get("region")
        listed = cast("list[object]", numbers) if isinstance(numbers, list) else []
        if len(listed) != 4:
            raise ToolError("region must be [x0, y0, x1, y1]. Nothing was done.")
        x0, y0 = self._map(listed[:2], "region")
        x1, y1 = self._map(listed[2:], "region", is_end=True)
        if x1 <= x0 or y1 <= y0:
            raise ToolError("region must be [x0, y0, x1, y1] with x0 < x1 and y0 < y1.")
        return PictureRegion(x0, y0, x1 - x0, y1 - y0)

    def _points(self, fields: Fields) -> tuple[tuple[int, int], ...]:
        """Without a coordinate the pointer stays where it is."""
        given = fields.get("coordinate") is not None
        return (self._point(fields, "coordinate"),) if given else ()

    def _point(self, fields: Fields, name: str) -> tuple[int, int]:
        return self._map(fields.get(name), name)

    def _map(self, value: object, name: str, *, is_end: bool = False) -> tuple[int, int]:
        numbers = cast("list[object]", value) if isinstance(value, list) else []
        if len(numbers) != 2 or not all(_is_number(each) for each in numbers):
            raise ToolError(f"{name} must be [x, y], in pixels of the screenshot, not {value!r}.")
        x, y = cast("tuple[float, float]", tuple(numbers))
        width, height = self._picture.width, self._picture.height
        if not (0 <= x < width + is_end and 0 <= y < height + is_end):
            raise ToolError(
                f"{name} ({x:g}, {y:g}) is outside of the screenshot, which has {width}x{height}"
                " pixels. Nothing was done."
            )
        if is_end:
            return (
                round(x * self._screen.width / width),
                round(y * self._screen.height / height),
            )
        return map_point((x, y), self._picture, self._screen)


def _zoomed_size(region: PictureRegion, picture: Screen) -> Screen:
    """As large as a screenshot, with the shape of the region."""
    scale = min(picture.width / region.width, picture.height / region.height)
    return Screen(max(int(region.width * scale), 1), max(int(region.height * scale), 1))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(fields: Fields, action: str) -> str:
    text = fields.get("text")
    if not isinstance(text, str) or not text:
        raise ToolError(f"text is required: what {action} needs. Nothing was done.")
    return text


def _modifiers(fields: Fields) -> tuple[str, ...]:
    """Keys that are held during an action of the mouse: `text` of one vendor, `keys` of another."""
    listed = fields.get("keys")
    if isinstance(listed, list):
        return tuple(str(key) for key in cast("list[object]", listed))
    text = fields.get("text")
    return split_chord(text) if isinstance(text, str) and text.strip() else ()


def _chords(text: str) -> Sequence[tuple[str, ...]]:
    """Several chords stand one after the other, with blanks between: `ctrl+a Delete`."""
    words = text.split()
    return [split_chord(word) for word in words] if words else [("space",)]


def split_chord(text: str) -> tuple[str, ...]:
    """`ctrl+shift+t` is three keys; a plus at the end is the key itself."""
    names = text.strip().split("+")
    if len(names) > 1 and names[-1] == "" and names[-2] == "":
        names = [*names[:-2], "plus"]
    return tuple(name.strip() or "plus" for name in names)


def _seconds(value: object) -> float:
    if value is None:
        return DEFAULT_WAIT_S
    if not _is_number(value) or not 0 <= cast("float", value) <= MAX_CALL_WAIT_S:
        raise ToolError(f"duration must be from 0 to {MAX_CALL_WAIT_S:g} seconds, not {value!r}.")
    return float(cast("float", value))


def _count(value: object, otherwise: int) -> int:
    if value is None:
        return otherwise
    if not _is_number(value) or not 0 <= cast("float", value) <= 100:
        raise ToolError(f"scroll_amount and repeat must be from 0 to 100, not {value!r}.")
    return int(cast("float", value))


def _wheel_turns(pixels: object) -> int:
    if not _is_number(pixels):
        return 0
    number = cast("float", pixels)
    turns = min(ceil(abs(number) / SCROLL_CLICK_PIXELS), 100)
    return turns if number > 0 else -turns


# The tool as a function, for models whose vendor has no tool of its own


def computer_schema() -> Raw:
    numbers = {"type": "array", "items": {"type": "number"}}
    properties: dict[str, object] = {
        "action": {"type": "string", "enum": list(ACTION_NAMES), "description": "What to do."},
        "coordinate": {
            **numbers,
            "description": "[x, y] in pixels of the screenshot. Clicks and scrolls without it"
            " happen where the pointer is.",
        },
        "start_coordinate": {**numbers, "description": "Where left_click_drag begins."},
        "text": {
            "type": "string",
            "description": "type: the text. key, hold_key: keys such as Return, ctrl+s, Page_Down."
            " Clicks and scroll: keys that are held, such as shift.",
        },
        "scroll_direction": {"type": "string", "enum": list(_DIRECTIONS)},
        "scroll_amount": {
            "type": "integer",
            "description": f"Turns of the wheel. Default {DEFAULT_SCROLL_CLICKS}.",
        },
        "duration": {
            "type": "number",
            "description": f"Seconds of wait and hold_key. Default {DEFAULT_WAIT_S:g}.",
        },
        "region": {**numbers, "description": "[x0, y0, x1, y1] that zoom shows enlarged."},
    }
    schema = {"type": "object", "properties": properties, "required": ["action"]}
    return Raw(msgspec.json.encode(schema))


def computer_description(picture: Screen) -> str:
    return (
        "Use the mouse and the keyboard of the workspace's desktop, and see its screen. Every call"
        f" returns a screenshot of {picture.width}x{picture.height} pixels, taken after the"
        " action; coordinates are pixels of it, from the top left corner. Begin with the action"
        " screenshot."
    )
