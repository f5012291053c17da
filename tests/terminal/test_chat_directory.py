"""Which chats the list has after pages and events, in any order."""

from chatd.client.resources import Chat
from chatd.terminal.chats.chat_directory import ChatDirectory, ListFilter
from tests.terminal.chat_values import chat_id, child, listed


def titles(directory: ChatDirectory) -> list[str]:
    return [chat.title for chat in directory.chats()]


def loaded(*, next_cursor: str | None = None, filter_: ListFilter | None = None) -> ChatDirectory:
    """Chats 1, 2 and 3, the newest first."""
    directory = ChatDirectory(filter_)
    directory.add_page([listed(n, minutes_ago=n * 10) for n in (1, 2, 3)], next_cursor)
    return directory


def test_pinned_chats_come_first_and_then_the_newest() -> None:
    directory = loaded()
    directory.put(listed(3, minutes_ago=30, pin_order=1, version=2))
    directory.put(listed(2, minutes_ago=0, version=2))
    assert titles(directory) == ["Chat 3", "Chat 2", "Chat 1"]


def test_an_older_copy_of_a_chat_changes_nothing() -> None:
    directory = loaded()
    directory.put(listed(1, title="New", version=5))
    directory.put(listed(1, title="Old", version=4))
    directory.add_page([listed(1, title="Older", version=3)], None)
    directory.replace_with([listed(1, title="Oldest", version=2)], None)
    assert titles(directory) == ["New"]


def test_a_chat_that_was_deleted_does_not_return_with_a_page_that_was_read_before() -> None:
    directory = loaded()
    directory.remove(chat_id(2))
    directory.add_page([listed(2)], None)
    directory.replace_with([listed(1), listed(2)], None)
    assert titles(directory) == ["Chat 1"]


def test_what_changes_while_the_list_is_read_is_not_undone_by_it() -> None:
    directory = ChatDirectory()
    before = [listed(1, children=(child(21, 1), child(23, 1))), listed(2), listed(3)]
    directory.add_page(before, None)
    directory.begin_reading()
    directory.put(listed(9, title="Begun", minutes_ago=0))
    directory.put(listed(2, archived=True, status="archived", version=2))
    directory.put(child(21, 1, title="Changed", version=2))
    directory.put(child(22, 1))
    directory.put(child(29, 9))
    directory.remove_child(child(23, 1))
    directory.remove(chat_id(3))
    directory.replace_with(before, None)
    assert titles(directory) == ["Begun", "Chat 1"]
    assert [[one.title for one in chat.children] for chat in directory.chats()] == [
        ["Subagent 29"],
        ["Changed", "Subagent 22"],
    ]


def test_what_changed_before_the_list_is_read_counts_no_more() -> None:
    directory = loaded()
    directory.put(listed(9, minutes_ago=0))
    directory.begin_reading()
    directory.replace_with([listed(1)], None)
    assert titles(directory) == ["Chat 1"]


def test_a_chat_that_is_shared_again_is_shown_again() -> None:
    directory = loaded()
    directory.remove(chat_id(2))
    directory.put(listed(2, is_owner=False, version=9))
    assert "Chat 2" in titles(directory)


def test_an_archived_chat_leaves_the_list_and_is_in_the_archive() -> None:
    active, archive = loaded(), ChatDirectory(ListFilter(view="archived"))
    archived = listed(1, archived=True, status="archived", version=2)
    active.put(archived)
    archive.put(archived)
    assert (titles(active), titles(archive)) == (["Chat 2", "Chat 3"], ["Chat 1"])


def test_a_changed_chat_beyond_the_pages_that_were_read_waits_for_its_page() -> None:
    directory = loaded(next_cursor="more")
    directory.put(listed(8, minutes_ago=100))
    directory.put(listed(9, minutes_ago=0))
    assert titles(directory) == ["Chat 9", "Chat 1", "Chat 2", "Chat 3"]


def test_a_chat_that_needs_a_person_is_shown_wherever_its_page_is() -> None:
    directory = loaded(next_cursor="more")
    directory.put(listed(8, minutes_ago=100, status="requires_action"))
    assert (titles(directory)[-1], directory.count_needing()) == ("Chat 8", 1)


def test_a_search_keeps_what_it_found_in_the_order_of_the_server() -> None:
    directory = loaded(filter_=ListFilter(query="words"))
    directory.put(listed(3, minutes_ago=0, title="Renamed", version=2))
    directory.put(listed(9, minutes_ago=0))
    assert titles(directory) == ["Chat 1", "Chat 2", "Renamed"]


def test_subagents_come_and_go_with_their_events() -> None:
    directory = loaded()
    directory.put(child(21, 1))
    directory.put(child(22, 21, 1, status="requires_action"))
    root = directory.chats()[0]
    assert [one.title for one in root.children] == ["Subagent 21", "Subagent 22"]
    assert directory.count_needing() == 1
    directory.remove_child(child(22, 21, 1))
    assert directory.find(chat_id(22)) is None
    assert directory.find(chat_id(21)) is not None


def test_a_reply_to_an_action_keeps_what_it_does_not_say() -> None:
    directory = ChatDirectory()
    directory.add_page([listed(1, has_unread=True, children=(child(21, 1),))], None)
    reply = Chat(id=chat_id(1), root_chat_id=chat_id(1), title="Renamed", version=2)
    directory.put(reply)
    (chat,) = directory.chats()
    assert (chat.title, chat.has_unread, chat.is_owner, len(chat.children)) == (
        "Renamed",
        True,
        True,
        1,
    )


def test_only_a_person_without_any_chat_is_offered_the_demos() -> None:
    reading, empty, archive = ChatDirectory(), ChatDirectory(), ChatDirectory()
    archive.filter = ListFilter(view="archived")
    empty.add_page([], None)
    archive.add_page([], None)
    assert [one.is_empty for one in (reading, empty, archive, loaded())] == [
        False,
        True,
        False,
        False,
    ]
