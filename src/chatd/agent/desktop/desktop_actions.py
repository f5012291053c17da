"""What can be done on a desktop: actions, read from a request, and carried out on a display.

Coordinates are pixels of the screen itself. Whatever an action has pressed is released when it
ends, however it ends, except buttons that the caller holds on purpose.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

from chatd.agent.desktop.x_display import DisplayLost, KeyboardKey, XDisplay
from chatd.agent.errors import AgentError
from chatd.agent.server.http_messages import RequestFields, read_fields

MAX_ACTIONS = 50
MAX_TYPED_CHARS = 20_000
MAX_PATH_POINTS = 500
MAX_CHORD_KEYS = 6
MAX_REPEATS = 100
MAX_SCROLL_CLICKS = 100
MAX_WAIT_MS = 60_000
"""Limit for all waits of a request together."""
ALIVE_CHECK_S = 0.5
"""How often an action that waits asks the X server whether it still runs."""
CLICK_PAUSE_S = 0.01
DRAG_PAUSE_S = 0.01
KEYMAP_PAUSE_S = 0.08
"""Programs learn of a changed keyboard by an event, and read it again."""

BUTTONS = {"left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}
_SCROLL_BUTTONS = {(0, -1): 4, (0, 1): 5, (-1, 0): 6, (1, 0): 7}
_KINDS = ("move", "click", "button", "drag", "scroll", "key", "hold", "type", "wait")


@dataclass(frozen=True)
class DesktopAction:
    """The kind decides which fields are used."""

    kind: str
    points: tuple[tuple[int, int], ...] = ()
    button: str = "left"
    is_down: bool = False
    count: int = 1
    keys: tuple[str, ...] = ()
    text: str = ""
    ms: int = 0
    across: int = 0
    down: int = 0


def read_actions(items: Sequence[object]) -> list[DesktopAction]:
    """Raises AgentError that names the action."""
    if len(items) > MAX_ACTIONS:
        raise AgentError(400, f"There are {len(items)} actions; at most {MAX_ACTIONS} are allowed.")
    found = [_read_action(item, f"actions[{at}]") for at, item in enumerate(items)]
    if sum(action.ms for action in found) > MAX_WAIT_MS:
        raise AgentError(400, f"The actions wait longer than {MAX_WAIT_MS // 1000} seconds.")
    return found


def _read_action(item: object, place: str) -> DesktopAction:
    fields = read_fields(item, place)
    kind, button = fields.text("kind"), fields.text("button", "left")
    action = DesktopAction(
        kind=kind,
        points=tuple(_read_point(point, place) for point in _read_list(fields, "points")),
        button=button,
        is_down=fields.flag("is_down"),
        count=fields.count("count", 1),
        keys=tuple(str(key) for key in _read_list(fields, "keys")),
        text=fields.text("text", ""),
        ms=fields.count("ms"),
        across=_signed(fields, "across"),
        down=_signed(fields, "down"),
    )
    fields.reject_unknown()
    limits = {
        "points": (len(action.points), MAX_PATH_POINTS),
        "keys": (len(action.keys), MAX_CHORD_KEYS),
        "text": (len(action.text), MAX_TYPED_CHARS),
        "count": (action.count, MAX_REPEATS),
        "across": (abs(action.across), MAX_SCROLL_CLICKS),
        "down": (abs(action.down), MAX_SCROLL_CLICKS),
    }
    for name, (given, most) in limits.items():
        if given > most:
            raise AgentError(400, f"{place}.{name} is {given}; at most {most} is allowed.")
    if kind not in _KINDS:
        raise AgentError(400, f"{place}: there is no action {kind!r}.")
    if button not in BUTTONS:
        raise AgentError(400, f"{place}: there is no button {button!r}.")
    if kind == "drag" and len(action.points) < 2:
        raise AgentError(400, f"{place}: a drag needs two points or more.")
    if kind == "move" and not action.points:
        raise AgentError(400, f"{place}: a move needs a point.")
    for key in action.keys:
        find_symbol(key)
    if kind in ("key", "hold") and not action.keys:
        raise AgentError(400, f"{place}: no key is named.")
    return action


def _read_list(fields: RequestFields, name: str) -> list[object]:
    with suppress(AgentError):
        return fields.items(name)
    return []


def _read_point(value: object, place: str) -> tuple[int, int]:
    numbers = cast("list[object]", value) if isinstance(value, list) else []
    if len(numbers) != 2 or not all(type(each) is int and 0 <= each < 32768 for each in numbers):
        raise AgentError(400, f"{place}: a point must be two pixel numbers from 0.")
    return cast("tuple[int, int]", tuple(numbers))


def _signed(fields: RequestFields, name: str) -> int:
    text = fields.text(name, "0")
    try:
        return int(text)
    except ValueError:
        raise AgentError(400, f"{name} must be a whole number") from None


# Keys by their names: those of X without case, and those that models use instead.

_NAMED = {
    "return": 0xFF0D, "enter": 0xFF0D, "kp_enter": 0xFF8D, "tab": 0xFF09, "escape": 0xFF1B,
    "esc": 0xFF1B, "backspace": 0xFF08, "delete": 0xFFFF, "del": 0xFFFF, "insert": 0xFF63,
    "home": 0xFF50, "end": 0xFF57, "page_up": 0xFF55, "pageup": 0xFF55, "prior": 0xFF55,
    "page_down": 0xFF56, "pagedown": 0xFF56, "next": 0xFF56, "left": 0xFF51, "up": 0xFF52,
    "right": 0xFF53, "down": 0xFF54, "arrowleft": 0xFF51, "arrowup": 0xFF52, "arrowright": 0xFF53,
    "arrowdown": 0xFF54, "space": 0x20, "shift": 0xFFE1, "shift_l": 0xFFE1, "shift_r": 0xFFE2,
    "ctrl": 0xFFE3, "control": 0xFFE3, "control_l": 0xFFE3, "control_r": 0xFFE4, "alt": 0xFFE9,
    "alt_l": 0xFFE9, "alt_r": 0xFFEA, "option": 0xFFE9, "altgr": 0xFE03, "super": 0xFFEB,
    "super_l": 0xFFEB, "super_r": 0xFFEC, "meta": 0xFFEB, "cmd": 0xFFE3, "command": 0xFFE3,
    "win": 0xFFEB, "caps_lock": 0xFFE5, "capslock": 0xFFE5, "num_lock": 0xFF7F, "menu": 0xFF67,
    "print": 0xFF61, "pause": 0xFF13, "scroll_lock": 0xFF14, "plus": 0x2B, "minus": 0x2D,
    "equal": 0x3D, "comma": 0x2C, "period": 0x2E, "slash": 0x2F, "backslash": 0x5C,
    "semicolon": 0x3B, "apostrophe": 0x27, "grave": 0x60, "bracketleft": 0x5B,
    "bracketright": 0x5D, "underscore": 0x5F, "colon": 0x3A, "asterisk": 0x2A, "question": 0x3F,
    **{f"f{number}": 0xFFBD + number for number in range(1, 25)},
}  # fmt: skip
_SHIFT = _NAMED["shift"]


def find_symbol(key: str) -> int:
    """The X symbol of a key's name or of a single character. Raises AgentError."""
    if len(key) == 1:
        return _character_symbol(key)
    symbol = _NAMED.get(key.strip().lower())
    if symbol is None:
        text = f"There is no key {key[:40]!r}. Use names such as Return, Page_Down, ctrl, F5 or a."
        raise AgentError(400, text)
    return symbol


def _character_symbol(char: str) -> int:
    if char in "\n\r":
        return _NAMED["return"]
    if char == "\t":
        return _NAMED["tab"]
    code = ord(char)
    if code < 0x20 or 0x7F <= code < 0xA0:
        raise AgentError(400, f"The character {char!r} cannot be typed.")
    return code if code < 0x100 else 0x01000000 | code


@dataclass
class ActionOutcome:
    """How many actions were done; `error` is why the next one was not. `is_unknown`: it may have
    been done in part."""

    done: int = 0
    error: str = ""
    is_unknown: bool = False


@dataclass
class DesktopInput:
    """Carries out actions. `stop` ends them early, such as when a person takes over."""

    display: XDisplay
    stop: threading.Event

    def run(self, actions: Sequence[DesktopAction]) -> ActionOutcome:
        outcome = ActionOutcome()
        try:
            for action in actions:
                if self.stop.is_set():
                    outcome.error = "A person took over the desktop."
                    break
                self._run_one(action)
                outcome.done += 1
        except AgentError as error:
            outcome.error = error.message
        except DisplayLost as error:
            outcome.error, outcome.is_unknown = f"The desktop failed: {error}.", True
        if outcome.error:
            self.release_all()
        return outcome

    def release_all(self) -> None:
        """Release what is held, last first, including what an earlier request left."""
        with suppress(DisplayLost):
            for keycode in reversed(self.display.held_keycodes()):
                self.display.press_key(keycode, is_down=False)
            for number in self.display.held_buttons():
                self.display.press_button(number, is_down=False)

    def _run_one(self, action: DesktopAction) -> None:
        for x, y in action.points:
            if x >= self.display.width or y >= self.display.height:
                size = f"{self.display.width}x{self.display.height}"
                raise AgentError(400, f"({x}, {y}) is outside of the screen, which has {size}.")
        if action.kind == "wait":
            self._wait(action.ms / 1000)
        elif action.kind == "type":
            self._type(action.text)
        elif action.kind == "key":
            for _ in range(action.count):
                with self._holding(action.keys):
                    pass
        elif action.kind == "hold":
            with self._holding(action.keys):
                self._wait(action.ms / 1000)
        else:
            with self._holding(action.keys):
                self._use_pointer(action)

    def _wait(self, seconds: float) -> None:
        """Raises DisplayLost soon after the X server has ended."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self.stop.wait(min(left_s, ALIVE_CHECK_S)):
                return
            self.display.pointer()

    def _use_pointer(self, action: DesktopAction) -> None:
        display, number = self.display, BUTTONS[action.button]
        if action.points:
            display.move(*action.points[0])
        if action.kind == "click":
            for _ in range(action.count):
                display.press_button(number, is_down=True)
                self.stop.wait(CLICK_PAUSE_S)
                display.press_button(number, is_down=False)
        elif action.kind == "button":
            display.press_button(number, is_down=action.is_down)
        elif action.kind == "drag":
            self._drag(action.points[1:], number)
        elif action.kind == "scroll":
            for axis, amount in (((1, 0), action.across), ((0, 1), action.down)):
                sign = 1 if amount > 0 else -1
                button = _SCROLL_BUTTONS[axis[0] * sign, axis[1] * sign]
                for _ in range(abs(amount)):
                    display.press_button(button, is_down=True)
                    display.press_button(button, is_down=False)

    def _drag(self, path: Sequence[tuple[int, int]], button: int) -> None:
        self.display.press_button(button, is_down=True)
        try:
            for point in path:
                self.stop.wait(DRAG_PAUSE_S)
                self.display.move(*point)
            self.stop.wait(DRAG_PAUSE_S)
        finally:
            self.display.press_button(button, is_down=False)

    @contextmanager
    def _holding(self, keys: Sequence[str]) -> Generator[None]:
        """Press the keys in order, and release them in reverse."""
        with self._keyboard([find_symbol(key) for key in keys]) as found:
            pressed: list[int] = []
            try:
                for key in found:
                    if key.level:
                        shift = self.display.read_keyboard()[_SHIFT].keycode
                        self.display.press_key(shift, is_down=True)
                        pressed.append(shift)
                    self.display.press_key(key.keycode, is_down=True)
                    pressed.append(key.keycode)
                yield
            finally:
                for keycode in reversed(pressed):
                    self.display.press_key(keycode, is_down=False)

    def _type(self, text: str) -> None:
        symbols = [_character_symbol(char) for char in text.replace("\r\n", "\n")]
        start = 0
        while start < len(symbols):
            if self.stop.is_set():
                raise AgentError(409, f"{start} of {len(symbols)} characters were typed.")
            # As many at once as the keyboard has spare keys for characters that it lacks.
            end, missing = start, dict[int, None]()
            known, spare = self.display.read_keyboard(), len(self.display.spare_keycodes)
            while end < len(symbols) and end < start + 200:
                if symbols[end] not in known:
                    missing[symbols[end]] = None
                if len(missing) > max(spare, 1):
                    break
                end += 1
            with self._keyboard(symbols[start:end]) as keys:
                self.display.type_keys(keys, known[_SHIFT].keycode)
            start = end

    @contextmanager
    def _keyboard(self, symbols: Sequence[int]) -> Generator[list[KeyboardKey]]:
        """The keys of the symbols. Spare keys stand for those that the keyboard lacks."""
        if not symbols:
            yield []
            return
        known: Mapping[int, KeyboardKey] = self.display.read_keyboard()
        missing = [symbol for symbol in dict.fromkeys(symbols) if symbol not in known]
        spare = self.display.spare_keycodes
        if len(missing) > len(spare):
            raise AgentError(503, "The keyboard has no key left for this character.")
        assigned = dict(zip(missing, spare))  # noqa: B905 - Python 3.9
        for symbol, keycode in assigned.items():
            self.display.assign_key(keycode, symbol)
        if assigned:
            self.stop.wait(KEYMAP_PAUSE_S)
        try:
            yield [known.get(each) or KeyboardKey(assigned[each], 0) for each in symbols]
        finally:
            if assigned:
                self.stop.wait(KEYMAP_PAUSE_S)  # before programs have read the keys
            for keycode in assigned.values():
                self.display.assign_key(keycode, 0)
