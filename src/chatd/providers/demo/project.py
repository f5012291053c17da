"""The small project with a bug that the demo model fixes: its files, and where they are."""

from typing import Final

from msgspec import Struct

CODE: Final = '''\
"""The price of a shopping basket."""


def total(prices, discount_percent=0):
    """The sum of the prices, less a discount in per cent."""
    amount = sum(prices)
    return amount - discount_percent
'''
WRONG: Final = "    return amount - discount_percent"
RIGHT: Final = "    return amount * (100 - discount_percent) / 100"

TEST: Final = """\
import unittest

from basket import total


class TotalTest(unittest.TestCase):
    def test_prices_are_added_up(self):
        self.assertEqual(total([10, 20, 30]), 60)

    def test_a_discount_is_in_per_cent(self):
        self.assertEqual(total([100, 100], discount_percent=10), 180)

    def test_an_empty_basket_costs_nothing(self):
        self.assertEqual(total([]), 0)


if __name__ == "__main__":
    unittest.main()
"""


FIXED: Final = CODE.replace(WRONG, RIGHT)


class Place(Struct, frozen=True, kw_only=True):
    """Where the project is. `ours`: nobody has put it there, so we do."""

    path: str
    ours: bool

    @property
    def code(self) -> str:
        return f"{self.path}/basket.py"

    @property
    def test(self) -> str:
        return f"{self.path}/test_basket.py"

    @property
    def command(self) -> str:
        runner = "unittest -v" if self.ours else "pytest -q"
        return f"cd {_quoted(self.path)} && python3 -m {runner}"

    @property
    def diff(self) -> str:
        return f"cd {_quoted(self.path)} && git diff"


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
