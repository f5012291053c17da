"""Pages of lists and their cursors."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
import pytest

from chatd.api.pages import (
    InvalidCursor,
    ItemPosition,
    NumberPosition,
    Paging,
    TimePosition,
    cut_whole,
)
from chatd.api.request import ApiCaller, ApiRequest, Message
from chatd.api.schemas.messages import MessageListQuery
from chatd.domain.access.permissions import UserActor
from chatd.domain.ids import UserId
from chatd.domain.list_page import ListQuery
from tests.api.workspace_api import WorkspaceApi
from tests.support.api.server import ADMINISTRATOR, OTHER_OWNER, ApiServer
from tests.support.factories import OWNER

IDS = [UUID(int=number) for number in range(1, 8)]


def request_of(path: str = "/api/v1/chats", user: UUID = OWNER) -> ApiRequest:
    async def receive() -> Message:
        raise AssertionError

    caller = ApiCaller(actor=UserActor(user_id=UserId(user), role="member"))
    return ApiRequest(caller=caller, path={}, scope={"path": path}, receive=receive)


def numbers(query: ListQuery, path: str = "/api/v1/chats", user: UUID = OWNER) -> int | None:
    position = Paging(request_of(path, user), query, NumberPosition).position
    return None if position is None else position.number


CURSOR = Paging(request_of(), ListQuery(), NumberPosition).make_cursor(NumberPosition(7))


def test_a_cursor_leads_to_its_position_with_any_limit() -> None:
    assert numbers(ListQuery(cursor=CURSOR)) == 7
    assert numbers(ListQuery(cursor=CURSOR, limit=3)) == 7
    assert numbers(ListQuery(cursor=CURSOR), path="/api/v1/chats/") == 7
    assert numbers(ListQuery()) is None


def made_by_hand(payload: bytes) -> str:
    """A cursor whose checksum is right: its maker has read the source."""
    paging = Paging(request_of(), ListQuery(), object)
    return paging.make_cursor(msgspec.Raw(payload))


@pytest.mark.parametrize(
    ("query", "place"),
    [
        (ListQuery(cursor=CURSOR), {"path": "/api/v1/workspaces"}),
        (ListQuery(cursor=CURSOR), {"user": OTHER_OWNER}),
        (MessageListQuery(cursor=CURSOR, before_id=5), {}),
        (ListQuery(cursor=CURSOR[:-1]), {}),
        (ListQuery(cursor="A" + CURSOR[1:]), {}),
        (ListQuery(cursor="x"), {}),
        (ListQuery(cursor="ä€"), {}),
        (ListQuery(cursor=str(IDS[0])), {}),
        (ListQuery(cursor=urlsafe_b64encode(b"[7]").decode()), {}),
        (ListQuery(cursor=made_by_hand(b"[-1]")), {}),
        (ListQuery(cursor=made_by_hand(b"[9223372036854775808]")), {}),
        (ListQuery(cursor=made_by_hand(b'["7"]')), {}),
        (ListQuery(cursor=made_by_hand(b"[[[[[")), {}),
        (ListQuery(cursor=made_by_hand(b"\xff")), {}),
    ],
)
def test_a_foreign_or_damaged_cursor_is_refused(query: ListQuery, place: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidCursor):
        numbers(query, **place)


def test_a_time_without_a_zone_is_refused() -> None:
    cursor = made_by_hand(b'["2026-01-01T00:00:00","00000000-0000-0000-0000-000000000001"]')
    with pytest.raises(InvalidCursor):
        Paging(request_of(), ListQuery(cursor=cursor), TimePosition)


def whole(ids: list[UUID], cursor: str | None) -> tuple[list[UUID], str | None]:
    paging = Paging(request_of(), ListQuery(cursor=cursor, limit=3), ItemPosition)
    shown, following = cut_whole(paging, ids, lambda item: item)
    return list(shown), following


def test_pages_of_a_list_that_is_read_whole_have_each_item_once() -> None:
    first, cursor = whole(IDS, None)
    second, last = whole(IDS, cursor)
    third, end = whole(IDS, last)
    assert (first + second + third, end) == (IDS, None)
    assert whole(IDS[:3], None) == (IDS[:3], None)
    assert whole([], None) == ([], None)


def test_a_list_that_changed_goes_on_after_the_last_item_or_in_its_place() -> None:
    _, cursor = whole(IDS, None)
    assert whole(IDS[1:], cursor)[0] == IDS[3:6]
    assert whole([*IDS[:2], *IDS[3:]], cursor)[0] == IDS[4:]
    assert whole(IDS[:2], cursor) == ([], None)


async def test_models_and_providers_are_listed_by_page(server: ApiServer) -> None:
    for path in ("/models?include_disabled=true", "/providers?include_disabled=true"):
        everything = (await server.ask("GET", path, token=ADMINISTRATOR)).items
        first = await server.ask("GET", f"{path}&limit=1", token=ADMINISTRATOR)
        rest = await server.ask("GET", f"{path}&cursor={first.cursor}", token=ADMINISTRATOR)
        assert first.items + rest.items == everything
        assert not rest.json["has_more"]


async def test_a_cursor_of_another_list_is_refused(api: WorkspaceApi) -> None:
    first = await api.ask("GET", "/models?limit=1")
    for path in ("/templates", "/user-keys", "/chats", "/workspaces"):
        refused = await api.ask("GET", f"{path}?cursor={first.cursor}")
        assert (refused.code, refused.field) == ((400, "invalid_cursor"), "cursor")
