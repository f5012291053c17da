"""Choosing a model and its effort: the rules as tables, the picker on a real server."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.client.resources import EffortRange, ModelCapabilities, ModelChoice, ModelPrices
from chatd.domain.ids import ModelConfigId
from chatd.terminal.composer.choices import ModelPicker, model_picks
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.model_texts import (
    dollars,
    effort_for,
    efforts_of,
    find_model,
    pick_model,
    price_text,
    refusal_of_model,
    size_text,
)
from chatd.terminal.dialogs import Pick, filter_picks
from tests.support.terminal import SMALL, TerminalServer, run_terminal, until, until_shown


def _model(number: int, name: str, efforts: tuple[str, ...] | None = None) -> ModelChoice:
    return ModelChoice(
        id=ModelConfigId(UUID(int=number)),
        name=name,
        provider="acme",
        model=f"{name}-1",
        display_name=name.title(),
        capabilities=ModelCapabilities(efforts=efforts),
    )


SMALL_MODEL = replace(_model(1, "small"), is_default=True)
LARGE = replace(
    _model(2, "large", ("high", "low", "medium", "max")),
    reasoning_effort=EffortRange(default="medium", max="high"),
)
OFF = replace(_model(3, "off"), enabled=False)
GONE = replace(_model(4, "gone"), deleted=True)
MODELS = (SMALL_MODEL, LARGE, OFF, GONE)


def test_efforts_rise_up_to_the_models_highest() -> None:
    assert efforts_of(LARGE) == ("low", "medium", "high")
    assert efforts_of(SMALL_MODEL) == ()
    assert efforts_of(_model(9, "x", ("low", "unheard"))) == ("low",)


@pytest.mark.parametrize(
    ("wanted", "effort"), [("high", "high"), ("max", "medium"), (None, "medium")]
)
def test_an_effort_that_the_model_lacks_becomes_its_default(
    wanted: str | None, effort: str
) -> None:
    assert effort_for(LARGE, wanted) == effort
    assert effort_for(SMALL_MODEL, wanted) is None
    assert effort_for(None, wanted) is None


def test_what_was_chosen_comes_before_what_the_chat_used_and_the_default() -> None:
    assert pick_model(MODELS, LARGE.id, SMALL_MODEL.id) is LARGE
    assert pick_model(MODELS, None, LARGE.id) is LARGE
    assert pick_model(MODELS, OFF.id, GONE.id) is SMALL_MODEL
    assert pick_model((), None, None) is None


@pytest.mark.parametrize(
    ("words", "found"),
    [("LARGE", LARGE), ("large-1", LARGE), ("lar", LARGE), ("acme", None), ("off", None)],
)
def test_a_model_is_found_by_its_name_or_by_what_fits_alone(
    words: str, found: ModelChoice | None
) -> None:
    assert find_model(MODELS, words) is found


def test_a_model_that_cannot_be_used_says_why_and_a_deleted_one_is_not_listed() -> None:
    assert (refusal_of_model(LARGE), refusal_of_model(GONE)) == ("", "deleted")
    picks = model_picks(MODELS, LARGE.id)
    assert [(one.label, one.refusal, one.is_current) for one in picks] == [
        ("Large", "", True),
        ("Small", "", False),
        ("Off", "disabled by an administrator", False),
    ]


@pytest.mark.parametrize(
    ("prices", "text"),
    [
        (ModelPrices(input="3", output="15"), "$3 in, $15 out"),
        (ModelPrices(input="0", output="0"), "free"),
        (ModelPrices(), ""),
        (ModelPrices(input="a lot"), "free"),
        (None, ""),
    ],
)
def test_prices_are_per_million_tokens(prices: ModelPrices | None, text: str) -> None:
    assert price_text(replace(_model(9, "x"), prices=prices)) == text


def test_sizes_and_amounts_are_short() -> None:
    assert [size_text(count) for count in (812, 12_400, 200_000, 1_500_000)] == [
        "812",
        "12k",
        "200k",
        "1.5M",
    ]
    assert [dollars(micros) for micros in (0, 1_234, 12_340_000)] == ["$0.00", "$0.0012", "$12.34"]


def test_a_hostile_name_of_a_model_is_plain_text() -> None:
    """An older server, or another one, may have such a name."""
    (pick,) = model_picks([replace(SMALL_MODEL, display_name="\x1b]0;x\x07[b]S\u202e\nmall")], None)
    assert pick.label == "[b]S mall"


def test_all_words_of_a_search_must_fit() -> None:
    picks = [Pick(value=at, label=f"Model {at}", words=f"vendor-{at % 2}") for at in range(4)]
    assert [one.value for one in filter_picks(picks, "vendor-1 MODEL")] == [1, 3]
    assert filter_picks(picks, "nothing") == []


async def test_a_model_is_searched_chosen_and_used_and_hostile_names_stay_text(
    server: TerminalServer,
) -> None:
    provider = await server.call(
        "POST",
        "/providers",
        {"name": "own", "kind": "openai-compat", "base_url": server.vendor.url},
    )
    await server.call(
        "POST",
        "/models",
        {
            "name": "thinker",
            "provider": provider["name"],
            "model": "think-1",
            "display_name": "[red]Thinker[/red]",
            "capabilities": {"efforts": ["low", "medium", "high"]},
        },
    )
    async with run_terminal(server, size=SMALL) as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelPicker))
        await pilot.press(*"think")
        shown = await until_shown(pilot, "[red]Thinker[/red]")
        assert "scripted  " not in shown
        await pilot.press("right", "enter")
        await until_shown(pilot, "[red]Thinker[/red] · high")
        composer = pilot.app.screen.query_one(Composer)
        assert composer.opened.draft.effort == "high"
        await pilot.press(*"/effort low", "enter")
        await until_shown(pilot, "[red]Thinker[/red] · low")
        await pilot.press(*"/model scripted", "enter")
        await until_shown(pilot, "The next messages go to scripted.")
        server.will_answer("done")
        await pilot.press(*"hello", "enter")
        await until(pilot, lambda: composer.chat_id is not None)
        assert (await server.call("GET", f"/chats/{composer.chat_id}"))["title"] == "hello"
