"""Behaviours that systems of this kind were bitten by, and the tests that pin ours.

A checklist, one line each: O for what operations do, V for versions and publishing. `tests` are
node ids; a line that no test covers says what is missing. `tests/unit/test_promises.py` checks
that the tests exist.
"""

from msgspec import Struct


class Line(Struct, frozen=True):
    id: str
    text: str
    tests: tuple[str, ...] = ()
    missing: str | None = None


_BUSY = "unit/test_moves_busy.py::test_"
_CLIENT = "unit/test_moves_client_tools.py::test_"
_CREATE = "unit/test_moves_create.py::test_"
_EDIT = "unit/test_moves_edit.py::test_"
_FAMILY = "unit/test_moves_family.py::test_"
_LISTS = "store/test_lists.py::test_"
_OWNERSHIP = "unit/test_moves_ownership.py::test_"
_QUEUE = "unit/test_moves_queue.py::test_"
_SEND = "unit/test_moves_send.py::test_"
_WALK = "unit/test_moves_walk.py::test_"
_WORKER = "unit/test_moves_worker.py::test_"
_WORLD = "model/test_walk.py::test_"

CATALOGUE = (
    Line(
        "O1",
        "a stop here is seen by a viewer elsewhere",
        ("engine/test_stops.py::test_a_stop_keeps_exactly_what_was_seen_elsewhere",),
    ),
    Line(
        "O2",
        "a stop ends without an owner",
        (_WORKER + "a_stop_keeps_the_partial_answer_and_answers_its_calls",),
    ),
    Line(
        "O3",
        "a message to a busy chat leaves owner and history alone",
        (_BUSY + "a_busy_chat_queues_and_goes_on_undisturbed",),
    ),
    Line(
        "O4",
        "a backlog keeps its order and never waits behind an idle chat",
        (
            _SEND + "a_failed_chat_with_a_queue_lets_the_oldest_go_first",
            "unit/test_states.py::test_a_row_has_one_state_or_cannot_be",
        ),
    ),
    Line(
        "O5",
        "an interrupting message is queued, not in history",
        (_BUSY + "an_interrupting_message_stops_the_turn_and_waits_for_the_partial",),
    ),
    Line(
        "O6",
        "an edit: new id, the rest gone, queue empty, chat runnable",
        (_EDIT + "an_edit_replaces_the_message_and_drops_all_after_it",),
    ),
    Line(
        "O7",
        "an edit of a missing or foreign message is refused",
        (
            _EDIT + "a_message_that_people_cannot_see_cannot_be_edited",
            _EDIT + "only_a_person_s_message_can_be_edited",
        ),
    ),
    Line(
        "O8",
        "instructions stand ahead of the first prompt",
        (_CREATE + "instructions_stand_ahead_of_the_first_prompt",),
        missing="their text: nobody writes it yet",
    ),
    Line(
        "O9",
        "whatever begins a turn stops at the spend limit, before the model is called",
        ("engine/test_budget.py::test_the_limit_stops_a_turn_between_two_calls",),
    ),
    Line(
        "O10",
        "the queue drains by itself, in order",
        (_WORKER + "the_queue_drains_in_order",),
        missing="that an admitted message is not checked against a limit again",
    ),
    Line(
        "O11",
        "the reason of an error is stored, and gone on leaving it",
        (
            _WORKER + "a_failed_turn_keeps_what_there_is_and_says_why",
            _SEND + "at_rest_every_way_just_sends",
        ),
    ),
    Line(
        "O12",
        "titles never touch versions nor overwrite a person's",
        (
            "engine/test_naming.py::test_a_title_that_a_person_has_given_stays",
            _LISTS + "what_is_set_beside_the_moves_raises_no_version_and_touches_nothing_else",
        ),
    ),
    Line(
        "O13",
        "every move from every state",
        (
            _WALK + "a_listed_move_reaches_exactly_the_listed_states",
            _WALK + "a_move_with_nothing_to_do_changes_nothing",
            _WALK + "an_unlisted_move_is_refused_with_a_reason",
        ),
    ),
    Line(
        "O14",
        "every row has one state, or is impossible",
        ("unit/test_states.py::test_a_row_has_one_state_or_cannot_be",),
    ),
    Line(
        "O15",
        "a chat begins with something, not necessarily with a prompt",
        (_CREATE + "a_chat_needs_a_message", _CREATE + "a_chat_may_begin_without_a_prompt"),
    ),
    Line(
        "O16",
        "archiving by family, in the right direction only",
        (
            _FAMILY + "a_root_takes_its_whole_family_along",
            _FAMILY + "members_that_are_archived_already_stay_as_they_are",
            _FAMILY + "a_child_cannot_come_back_to_what_is_archived",
            _FAMILY + "a_chat_that_is_there_already_is_refused",
        ),
    ),
    Line(
        "O17",
        "the queue has an end",
        (_BUSY + "the_queue_has_an_end",),
        missing="refusing an unknown way to meet a busy chat: no API yet",
    ),
    Line(
        "O18",
        "an interrupting message answers what a client owed",
        (_BUSY + "an_interrupting_message_answers_the_client_s_calls",),
    ),
    Line(
        "O19",
        "an edit keeps or overrides model and effort",
        (_EDIT + "an_edit_keeps_model_and_effort_unless_it_names_others",),
        missing="an unknown or disabled model: no model configurations yet",
    ),
    Line(
        "O20",
        "open calls get error results before anything follows; a provider's own do not",
        (
            _SEND + "sending_answers_the_calls_of_a_failed_turn_first",
            _QUEUE + "letting_a_message_through_answers_open_calls_first",
            _WORKER + "a_stop_keeps_results_that_were_in_and_answers_the_rest",
            _WORKER + "no_result_is_made_up_for_a_call_the_provider_runs",
        ),
    ),
    Line(
        "O21",
        "a turn does not end over open calls",
        (_WORKER + "a_turn_cannot_end_while_calls_are_open",),
    ),
    Line(
        "O22",
        "results that are double, missing, unknown, not JSON, or late",
        (
            _CLIENT + "results_must_answer_exactly_what_is_open",
            _CLIENT + "results_that_come_twice_or_too_late_are_refused",
        ),
    ),
    Line(
        "O23",
        "only an owner lets go, only an unowned chat is taken",
        (
            _OWNERSHIP + "only_the_owner_of_this_epoch_can_let_go",
            _OWNERSHIP + "two_workers_cannot_take_one_chat",
        ),
    ),
    Line(
        "O24",
        "a request to compact: survives, is used up, is cleared, is refused",
        (
            _EDIT + "the_mark_outlives_a_hand_over_and_a_queue",
            _EDIT + "the_mark_is_used_up_by_the_summary_alone",
            _EDIT + "the_mark_goes_with_the_turn",
            _EDIT + "a_summary_is_asked_for_by_a_mark_and_gets_a_fresh_history",
            _EDIT + "a_summary_waits_for_no_running_turn",
            _EDIT + "a_summary_is_not_made_before_there_is_something_to_say",
        ),
    ),
    Line(
        "O25",
        "model, effort and author survive the queue",
        (
            _SEND + "a_queued_message_keeps_model_effort_and_author_until_it_is_promoted",
            _QUEUE + "an_edit_in_the_queue_keeps_what_it_does_not_name",
        ),
    ),
    Line("O26", "files are linked with their message or not at all", missing="no files yet"),
    Line(
        "O27",
        "each refusal has its HTTP status",
        (
            "api/test_messages.py::test_a_sender_may_rather_be_refused_than_wait",
            "api/test_messages.py::test_a_full_queue_takes_no_more",
            "api/test_messages.py::test_a_chat_that_asks_for_nothing_takes_no_answers",
            "api/test_queue.py::test_what_has_left_the_queue_cannot_be_changed_or_moved",
        ),
    ),
    Line(
        "V1",
        "revision and history_version follow what changed, and only that",
        (
            _WORLD + "the_invariants_hold_at_every_step_and_all_comes_to_rest",
            _EDIT + "an_edit_deletes_softly_and_says_when",
        ),
    ),
    Line(
        "V2",
        "queue_version follows the queue, and only that",
        (
            _QUEUE + "a_queued_message_is_edited_in_place",
            _QUEUE + "a_queued_message_is_put_elsewhere",
            _EDIT + "an_edit_of_an_empty_queue_is_no_news_for_the_queue",
        ),
    ),
    Line(
        "V3",
        "retry_version follows the retry, which a commit or a new owner ends",
        (
            _OWNERSHIP + "a_retry_is_in_the_row_for_whoever_comes_now",
            _OWNERSHIP + "a_retry_is_over_when_something_was_committed",
            _OWNERSHIP + "a_retry_lasts_until_somebody_takes_the_chat_over",
            _OWNERSHIP + "a_chat_that_never_retried_has_no_news_of_it",
        ),
    ),
    Line(
        "V4",
        "one version per write, none for a refusal or for nothing",
        (
            _WALK + "a_listed_move_reaches_exactly_the_listed_states",
            _WALK + "a_move_with_nothing_to_do_changes_nothing",
        ),
    ),
)
