"""Who may use a template; template ranking, pages and recommendation, and readme excerpts."""

from datetime import timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.workspace.entities import Template, TemplateId
from chatd.domain.workspace.templates import (
    TemplateListing,
    TemplateUsage,
    TemplateUser,
    list_templates,
    may_use_template,
    readme_excerpt,
)
from tests.support.factories import AT
from tests.support.workspaces import template


def named(number: int, name: str, **columns: object) -> Template:
    return template(id=TemplateId(UUID(int=number)), name=name, **columns)


ADA = TemplateUser(role="member", username="Ada", email="ada@Example.com", groups=("Data", "Ops"))


@pytest.mark.parametrize(
    ("users", "groups", "user", "allowed"),
    [
        ((), (), ADA, True),
        ((), (), None, True),
        (("ada",), (), ADA, True),
        (("ADA@example.com",), (), ADA, True),
        (("bob",), (), ADA, False),
        (("data",), (), ADA, False),
        (("",), (), replace(ADA, email=None), False),
        ((), ("data",), ADA, True),
        ((), ("dat", "ada"), ADA, False),
        (("bob",), ("OPS",), ADA, True),
        (("ada",), ("x",), ADA, True),
        (("bob",), (), replace(ADA, role="admin"), True),
        (("bob",), (), replace(ADA, role="viewer"), True),
        (("bob",), ("data",), replace(ADA, groups=()), False),
        (("ada",), ("data",), None, False),
    ],
)
def test_a_template_is_for_all_or_for_its_users_and_groups(
    users: tuple[str, ...],
    groups: tuple[str, ...],
    user: TemplateUser | None,
    allowed: bool,  # noqa: FBT001
) -> None:
    assert may_use_template(template(users=users, groups=groups), user) == allowed


def names(listing: TemplateListing) -> list[str]:
    return [ranked.template.name for ranked in listing.templates]


def recommended(listing: TemplateListing) -> int | None:
    return None if listing.recommended is None else listing.recommended.int


MANY = [
    named(1, "python-web", description="Django and friends"),
    named(2, "python"),
    named(3, "data", display_name="Big Python"),
    named(4, "go", description="Not python"),
    named(5, "rust"),
]


@pytest.mark.parametrize(
    ("query", "order", "best"),
    [
        ("python", ["python", "python-web", "data", "go"], 2),
        ("Py Thon", ["python", "python-web", "data", "go"], 2),
        ("python_web", ["python-web"], 1),
        ("python-", ["python", "python-web", "data", "go"], 2),
        ("django", ["python-web"], 1),
        ("cobol", [], None),
    ],
)
def test_a_query_sorts_templates_by_match(query: str, order: list[str], best: int | None) -> None:
    listing = list_templates(MANY, {}, query=query, now=AT)
    assert names(listing) == order
    assert recommended(listing) == best
    assert listing.next_step == ("use_recommended" if best else "no_match")
    without_signals = list_templates(MANY, None, query=query, now=AT)
    assert (names(without_signals), recommended(without_signals)) == (order, best)


TWO = [named(1, "one"), named(2, "two")]


def used(
    days: float = 0, *, active: int = 1, deleted: int = 0, developers: int = 0
) -> TemplateUsage:
    return TemplateUsage(
        active=active,
        deleted=deleted,
        last_used_at=AT - timedelta(days=days),
        developers=developers,
    )


def crowd(developers: int) -> TemplateUsage:
    return TemplateUsage(developers=developers)


@pytest.mark.parametrize(
    ("one", "two", "query", "best", "step"),
    [
        (TemplateUsage(), TemplateUsage(), "", None, "ask_user"),
        (crowd(1), crowd(0), "", None, "ask_user"),
        (crowd(2), crowd(0), "", 1, "use_recommended"),
        (crowd(2), crowd(1), "", 1, "use_recommended"),
        (crowd(5), crowd(4), "", None, "ask_user"),
        (crowd(5), crowd(3), "", 1, "use_recommended"),
        (used(1), crowd(50), "", 1, "use_recommended"),
        (used(59), crowd(50), "", 2, "use_recommended"),
        (used(1), used(1.1), "", None, "ask_user"),
        (used(1), used(1, active=0, deleted=1), "", 1, "use_recommended"),
        (crowd(0), crowd(0), "o", 1, "use_recommended"),
        (crowd(0), crowd(9), "o", 1, "use_recommended"),
    ],
)
def test_a_template_is_recommended_only_with_a_clear_lead(
    one: TemplateUsage, two: TemplateUsage, query: str, best: int | None, step: str
) -> None:
    signals = {TWO[0].id: one, TWO[1].id: two}
    listing = list_templates(TWO, signals, query=query, now=AT)
    assert (recommended(listing), listing.next_step) == (best, step)


def test_of_two_equal_matches_the_used_one_is_recommended() -> None:
    both = [named(1, "web-a"), named(2, "web-b")]
    assert recommended(list_templates(both, {}, query="web", now=AT)) is None
    listing = list_templates(both, {both[1].id: crowd(1)}, query="web", now=AT)
    assert (names(listing), recommended(listing)) == (["web-b", "web-a"], 2)


def test_the_only_template_is_recommended() -> None:
    listing = list_templates([named(1, "one")], None, now=AT)
    assert (recommended(listing), listing.next_step) == (1, "use_recommended")
    assert list_templates([], {}, now=AT).next_step == "none"


@pytest.mark.covers("workspaces-5")
def test_the_template_of_the_project_is_first_and_recommended_unless_there_is_a_query() -> None:
    signals = {TWO[0].id: crowd(1000)}
    plain = list_templates(TWO, signals, now=AT)
    assert plain.recommended == TWO[0].id
    preferred = list_templates(TWO, signals, preferred=TWO[1].name, now=AT)
    assert names(preferred) == [TWO[1].name, TWO[0].name]
    assert (preferred.recommended, preferred.next_step) == (TWO[1].id, "use_recommended")
    queried = list_templates(TWO, signals, query=TWO[0].name, preferred=TWO[1].name, now=AT)
    assert queried.recommended == TWO[0].id
    assert list_templates(TWO, signals, preferred="gone", now=AT).recommended == TWO[0].id


def test_templates_that_chats_may_not_use_are_left_out() -> None:
    hidden = [
        named(1, "a", deleted=True),
        named(2, "b", deprecated=True),
        named(3, "c", agents_allowed=False),
        named(4, "d"),
    ]
    assert names(list_templates(hidden, {}, now=AT)) == ["d"]


def test_templates_are_ranked_before_paging() -> None:
    many = [named(n, f"t{n:02}") for n in range(1, 24)]
    signals = {many[22].id: crowd(9)}
    first = list_templates(many, signals, now=AT)
    assert (names(first)[:2], first.next_page) == (["t23", "t01"], 2)
    last = list_templates(many, signals, page=3, now=AT)
    assert (names(last), last.next_page) == (["t20", "t21", "t22"], None)
    assert recommended(last) == 23
    assert names(list_templates(many, signals, page=9, now=AT)) == []
    assert list_templates(many, signals, page=-1, now=AT).page == 1


@pytest.mark.parametrize(
    ("readme", "excerpt"),
    [
        ("# Hi\n\nthere\n", "# Hi\n\nthere"),
        ("---\ntitle: x\n---\n# Hi", "# Hi"),
        ("---\r\na: b\r\n---\r\nHi", "Hi"),
        ("a\n---\nb\n---\n", "a\n---\nb\n---"),
        ("--- no end", "--- no end"),
        ("x" * 1001, "x" * 999 + "…"),
        ("x" * 1000, "x" * 1000),
        ("", ""),
    ],
)
def test_a_readme_excerpt_has_no_front_matter(readme: str, excerpt: str) -> None:
    assert readme_excerpt(readme) == excerpt
