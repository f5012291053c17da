"""The query language of the chat list, snippets, and the order of pins."""

import pytest

from chatd.domain.chat_views.search import (
    MAX_PINNED_CHATS,
    MAX_QUERY_CHARS,
    SearchQuery,
    parse_query,
    place_pin,
)
from chatd.domain.errors import Conflict, InvalidInput
from tests.support.store import chat_id


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", SearchQuery()),
        ("  ", SearchQuery()),
        ("archived:true", SearchQuery(archived=True)),
        ("archived:false archived:false", SearchQuery(archived=False)),
        ("status:error", SearchQuery(status="error")),
        ("label:team:blue label:env:prod", SearchQuery(labels={"team": "blue", "env": "prod"})),
        ('label:"team:deep blue"', SearchQuery(labels={"team": "deep blue"})),
        ("label:url:http://x", SearchQuery(labels={"url": "http://x"})),
        ("Fence lease", SearchQuery(texts=("fence", "lease"))),
        ("search:fence", SearchQuery(texts=("fence",))),
        ('"out of memory" now', SearchQuery(texts=("out of memory", "now"))),
        ('"http://x"', SearchQuery(texts=("http://x",))),
        ('title:Build title:"of june"', SearchQuery(titles=("build", "of june"))),
        ("o'brien", SearchQuery(texts=("o'brien",))),
        ("Übung", SearchQuery(texts=("ubung",))),
        ("src/Chatd/store.py", SearchQuery(texts=("src/chatd/store.py",))),
        ('fence"of the"lease', SearchQuery(texts=("fence", "of the", "lease"))),
    ],
)
def test_a_query_is_a_list_of_terms(text: str, query: SearchQuery) -> None:
    assert parse_query(text) == query


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("colour:red", "position 1: there is no colour: term"),
        ("fence http://x", "position 7: there is no http: term"),
        ("title:", "position 1: the term has no value"),
        ('fence ""', "position 7: the quotation marks are empty"),
        ('fence "lease', "position 7: the quotation mark is not closed"),
        ('title:"lease', "position 1: the quotation mark is not closed"),
        ("archived:yes", "position 1: archived: is true or false"),
        ("archived:true archived:false", "position 15: archived: cannot have two values"),
        ("status:busy", "position 1: status: is one of waiting"),
        ("status:error status:waiting", "position 14: status: cannot have two values"),
        ("label:team", "position 1: a label is label:key:value"),
        ("label:a:b label:a:c", "position 11: the label a cannot have two values"),
        ("fence ...", "position 7: there is no word"),
        ("x" * (MAX_QUERY_CHARS + 1), "at most 1000 characters"),
        ("a " * 31, "at most 30 terms"),
    ],
)
def test_a_bad_term_is_refused_with_its_position(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_query(text)
    assert refused.value.field == "q"
    assert reason in refused.value.detail


A, B, C, D = (chat_id(number) for number in range(1, 5))


@pytest.mark.parametrize(
    ("chat", "wanted", "order"),
    [
        (D, 1, [A, B, C, D]),
        (D, 99, [A, B, C, D]),
        (D, 0, [A, B, C]),
        (A, 3, [B, C, A]),
        (A, 2, [B, A, C]),
        (A, 99, [B, C, A]),
        (C, 1, [C, A, B]),
        (B, 2, [A, B, C]),
        (B, 0, [A, C]),
    ],
)
def test_pins_stay_dense(chat: object, wanted: int, order: list[object]) -> None:
    pinned = [A, B, C]
    placed = place_pin(pinned, next(one for one in (A, B, C, D) if one == chat), wanted)
    found = sorted((place, one) for one, place in placed.items() if place)
    assert [one for _, one in found] == order
    assert [place for place, _ in found] == list(range(1, len(order) + 1))


def test_the_number_of_pins_is_limited() -> None:
    pinned = [chat_id(number) for number in range(1, MAX_PINNED_CHATS + 1)]
    with pytest.raises(Conflict) as refused:
        place_pin(pinned, chat_id(999), 1)
    assert refused.value.code == "too_many_pins"
    assert place_pin(pinned, pinned[0], 2)[pinned[0]] == 2
