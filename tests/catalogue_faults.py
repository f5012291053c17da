"""What can go wrong around a chat, and the tests that show what becomes of it.

F are faults of processes, networks, databases and clocks, and people who get in each other's way;
T are ways in which servers of this kind have failed their users. `tests` are node ids, an accident
of `chaos/test_accidents.py` included; what no test shows says why in `missing`.
`tests/chaos/test_catalogue.py` checks that nothing is left out and that the tests exist.
"""

from typing import Final

from msgspec import Struct

FAULTS: Final = 47
FAILURES: Final = 47

WORKSPACE: Final = "needs a workspace"
SUBAGENTS: Final = "needs subagents"


class Row(Struct, frozen=True, kw_only=True):
    ids: tuple[str, ...]
    text: str
    tests: tuple[str, ...] = ()
    missing: str | None = None


def _row(ids: str, text: str, *tests: str, missing: str | None = None) -> Row:
    return Row(ids=tuple(ids.split()), text=text, tests=tests, missing=missing)


_ACCIDENT = "chaos/test_accidents.py::"
_TAKEOVER = "chaos/test_takeover.py::test_"
_ROLLING = "chaos/test_rolling.py::test_"
_FAULTS = "engine/test_faults.py::test_"
_LEASE = "engine/test_lease.py::test_"
_LEAVING = "engine/test_leaving.py::test_"
_LONG = "engine/test_long_chats.py::test_"
_LOOP = "engine/test_loop.py::test_"
_MEETINGS = "engine/test_meetings.py::test_"
_ORPHANS = "engine/test_orphans.py::test_"
_REPLICAS = "engine/test_replicas.py::test_"
_RETRY = "engine/test_retry.py::test_"
_ROUND = "engine/test_round_trips.py::test_"
_STOPS = "engine/test_stops.py::test_"
_TOOLS = "engine/test_tools.py::test_"
_TURNS = "engine/test_turns.py::test_"
_BUSY = "engine/test_busy.py::test_"
_FEEDS = "stream/test_feeds.py::test_"
_LIVE = "stream/test_live.py::test_"
_RACES = "stream/test_races.py::test_"
_PRESSURE = "stream/test_back_pressure.py::test_"
_LOST = "stream/test_lost_changes.py::test_"
_KEYS = "api/test_keys.py::test_"
_SSE = "api/test_sse.py::test_"
_FAMILIES = "store/test_families.py::test_"

CATALOGUE: Final = (
    # Processes that die
    _row(
        "F1",
        "killed in mid-answer: another goes on from the last commit, nothing twice",
        _ACCIDENT + "killed_in_mid_answer",
        _TAKEOVER + "who_watches_a_chat_whose_worker_is_killed_sees_it_go_on",
    ),
    _row(
        "F2",
        "killed in the middle of a tool: it runs again or is reported, the model is not asked",
        _ACCIDENT + "killed_in_the_middle_of_a_tool",
        _ACCIDENT + "killed_in_the_middle_of_a_tool_that_must_not_run_twice",
    ),
    _row(
        "F3",
        "killed between a commit and telling of it",
        _ACCIDENT + "killed_before_its_answer_was_published",
        _ACCIDENT + "killed_before_its_call_was_published",
        _ACCIDENT + "killed_before_its_results_were_published",
        _FEEDS + "what_no_hint_told_is_found_by_the_poll",
    ),
    _row(
        "F4",
        "the line is lost during a commit: it is there once",
        _FAULTS + "an_answer_whose_commit_was_not_confirmed_is_there_once",
        _FAULTS + "a_step_whose_commit_was_not_confirmed_is_followed_by_the_next",
    ),
    _row(
        "F5",
        "killed while it stops a turn: the stop ends all the same, and keeps what was shown",
        _ACCIDENT + "killed_while_it_stops",
        _REPLICAS + "a_stop_keeps_what_was_shown_however_many_die_of_it",
    ),
    _row(
        "F6",
        "a chat that kills every worker is given up",
        _ORPHANS + "a_chat_that_has_killed_too_many_workers_is_left_alone",
        _ORPHANS + "a_runner_that_crashes_again_and_again_ends_in_an_error",
    ),
    _row(
        "F7",
        "asked to leave while idle, in mid-answer, in a tool",
        _ACCIDENT + "asked_to_leave_with_nothing_to_do",
        _ACCIDENT + "asked_to_leave_in_mid_answer",
        _ACCIDENT + "asked_to_leave_in_the_middle_of_a_tool",
        _ACCIDENT + "asked_to_leave_with_a_tool_that_does_not_end",
        _ACCIDENT + "killed_while_it_leaves",
        missing="while it waits for a child: " + SUBAGENTS,
    ),
    _row(
        "F8",
        "asked to leave just as the model ends",
        _MEETINGS + "leaving_against_the_last_word_answers_once",
    ),
    _row(
        "F9",
        "asked to leave while chats are being taken",
        _LEAVING + "chats_that_are_just_being_taken_go_back_too",
        _LEAVING + "a_message_that_comes_while_leaving_is_not_kept",
    ),
    # The database and the way to it
    _row(
        "F10",
        "the database is restarted",
        _FAULTS + "a_restart_of_the_database_costs_no_answer",
        _TAKEOVER + "a_database_that_is_killed_in_between_strands_nobody",
    ),
    _row(
        "F11",
        "a standby without the last commits takes over",
        _FAULTS + "a_row_that_goes_back_in_time_is_begun_again_from_there",
        _LOST + "a_version_that_goes_back_resets_those_who_are_connected",
        _LOST + "one_that_comes_back_with_a_version_ahead_starts_over",
    ),
    _row(
        "F12",
        "cut off from the database, not from the model",
        _ACCIDENT + "cut_off_in_mid_answer",
        _LEASE + "with_an_old_lease_no_model_is_called",
        _LEASE + "with_a_lost_lease_everything_stops_and_goes_on_when_it_is_back",
        _REPLICAS + "what_a_replica_cut_off_ran_is_run_by_another",
    ),
    _row(
        "F13",
        "cut off from other replicas only",
        missing="cannot happen: replicas speak to the database and never to each other",
    ),
    _row(
        "F14",
        "hears no hints while everything else works",
        "store/test_listen.py::test_a_session_that_answers_but_hears_nothing_is_dropped_after_a_ping",
        _FAULTS + "a_chat_whose_hint_was_lost_is_taken_by_the_tick",
        _FAULTS + "a_stop_whose_hint_was_lost_is_heard_of_in_time",
    ),
    _row(
        "F15",
        "hints are lost, doubled, late, out of order",
        "stream/test_any_order.py::test_every_viewer_ends_up_with_what_is_there",
        _FAULTS + "hints_that_are_old_repeated_or_wrong_disturb_nobody",
    ),
    _row(
        "F16",
        "a flood of hints about one chat",
        _RACES + "a_flood_of_hints_is_one_read_in_flight_and_one_behind_it",
    ),
    _row(
        "F17",
        "a viewer who never reads",
        _SSE + "a_client_that_takes_nothing_is_let_go",
        _PRESSURE + "one_that_is_a_mebibyte_behind_is_cut_off_and_the_others_are_not",
        _PRESSURE + "one_that_takes_nothing_for_ten_seconds_is_cut_off",
    ),
    # Time
    _row(
        "F18",
        "a replica's clock is wrong",
        _FAULTS + "a_replica_with_a_wrong_clock_ends_nothing_early",
        "store/test_tick.py::test_no_time_of_a_workers_own_clock_reaches_the_database",
    ),
    _row(
        "F19",
        "the database's clock jumps",
        _MEETINGS + "a_database_whose_clock_jumps_takes_no_chat_away",
        "store/test_workers.py::test_a_chat_marked_by_a_clock_that_went_back_is_taken_all_the_same",
    ),
    # Who owns a chat
    _row(
        "F20",
        "two workers believe that a chat is theirs",
        _ACCIDENT + "cut_off_in_mid_answer",
        "store/test_transact.py::test_a_worker_whose_chat_was_taken_writes_nothing_and_tells_nobody",
    ),
    _row(
        "F21",
        "a worker takes a chat again while its old task still lives",
        _ORPHANS + "a_chat_that_comes_back_under_a_new_epoch_has_one_runner",
        _STOPS + "an_edit_during_a_tool_fences_its_result_off",
    ),
    _row(
        "F22",
        "frozen for longer than its lease, and back",
        _ACCIDENT + "frozen_in_mid_answer",
        _LEASE + "with_a_lost_lease_everything_stops_and_goes_on_when_it_is_back",
    ),
    # People
    _row(
        "F23",
        "one request made several times",
        _KEYS + "a_message_that_is_sent_twice_under_one_key_is_there_once",
        _KEYS + "requests_of_one_key_that_come_at_once_make_one_chat",
        "store/test_requests.py::test_ten_of_the_same_request_at_once_send_one_message",
    ),
    _row(
        "F24",
        "a message meets the end of a turn",
        _STOPS + "a_message_against_the_last_word_is_answered_either_way",
    ),
    _row(
        "F25",
        "a stop meets the end of a turn",
        _STOPS + "a_stop_against_the_last_word_ends_at_rest_either_way",
    ),
    _row(
        "F26",
        "stopped twice, at rest, before anybody took it",
        _STOPS + "stopping_twice_is_stopping_once",
        _MEETINGS + "a_chat_that_nobody_has_taken_is_stopped_without_one",
    ),
    _row(
        "F27",
        "stopped while a tool does not listen",
        _STOPS + "a_tool_that_does_not_listen_holds_a_stop_up_for_a_moment_only",
        _STOPS + "a_stop_that_nobody_carries_out_ends_by_its_deadline",
    ),
    _row(
        "F28",
        "stopped before the first word",
        _BUSY + "stopping_before_the_first_word_leaves_no_empty_answer",
    ),
    _row(
        "F29",
        "an edit during an answer, a stop, a tool, a wait",
        _BUSY + "an_edit_fences_the_running_answer_off",
        _MEETINGS + "an_edit_during_a_stop_needs_not_wait_for_it",
        _STOPS + "an_edit_during_a_tool_fences_its_result_off",
        _RETRY + "an_edit_during_the_wait_begins_anew",
    ),
    _row(
        "F30",
        "an edit of what another edit has just removed",
        _MEETINGS + "of_two_edits_of_one_message_one_wins",
    ),
    _row(
        "F31",
        "a message is let through while a turn runs",
        _STOPS + "promoting_a_queued_message_stops_the_turn_for_it",
    ),
    _row(
        "F32",
        "let through and taken out at once",
        _MEETINGS + "a_queued_message_is_promoted_or_taken_out_but_not_both",
    ),
    _row(
        "F33",
        "two who want the last place in the queue",
        _MEETINGS + "of_two_who_want_the_last_place_in_the_queue_one_is_refused",
    ),
    _row(
        "F34",
        "archived while it runs, with its family, while a client is asked",
        _STOPS + "an_archived_chat_is_not_written_to_any_more",
        _MEETINGS + "a_chat_that_waits_for_a_client_can_be_archived",
        _FAMILIES + "a_family_in_mixed_states_is_archived_and_brought_back_together",
    ),
    _row(
        "F35",
        "back from the archive while a late worker writes",
        _MEETINGS + "a_chat_that_came_back_from_the_archive_is_not_written_to_by_its_old_worker",
    ),
    # Families
    _row("F36", "a parent is killed while its child runs", missing=SUBAGENTS),
    _row("F37", "a child is killed while its parent waits", missing=SUBAGENTS),
    _row(
        "F38",
        "a parent is archived while its child runs",
        _FAMILIES + "a_family_in_mixed_states_is_archived_and_brought_back_together",
        _FAMILIES + "a_child_created_just_after_its_root_is_archived_is_refused",
        missing="a child that is at work: " + SUBAGENTS,
    ),
    _row("F39", "a parent dies after it has made a child", missing=SUBAGENTS),
    _row(
        "F40",
        "all slots are taken by parents that wait for children",
        _FAULTS + "a_parent_that_waits_does_not_take_its_childs_slot",
        "store/test_workers.py::test_children_do_not_wait_for_slots_of_roots_nor_the_other_way",
    ),
    # The rest of the world
    _row(
        "F41",
        "a client's results never come, come twice, come too late",
        _TOOLS + "results_that_never_come_are_not_waited_for_for_ever",
        _TOOLS + "fifty_results_for_one_call_are_one_result",
        "unit/test_moves_client_tools.py::test_results_that_come_twice_or_too_late_are_refused",
    ),
    _row(
        "F42",
        "the model is silent, breaks off, hangs up",
        _RETRY + "silence_is_a_failure_that_passes",
        _RETRY + "nothing_of_an_answer_that_breaks_off_is_kept",
        _RETRY + "a_cancellation_that_nobody_asked_for_is_a_cut_connection",
        _RETRY + "what_does_not_get_better_is_given_up",
    ),
    _row(
        "F43",
        "content that nobody can store or show",
        _LOOP + "what_a_database_cannot_hold_is_replaced_and_the_chat_lives_on",
        _LOOP + "an_answer_that_cannot_be_written_ends_the_turn_with_a_reason",
        _LIVE + "a_preview_that_is_too_long_ends_with_a_mark_everywhere",
    ),
    _row(
        "F44",
        "the limit cannot be looked up",
        "engine/test_budget.py::test_a_limit_that_cannot_be_looked_up_stops_nobody",
    ),
    _row(
        "F45",
        "no connection is free",
        _FAULTS + "a_pool_without_a_free_session_does_not_cost_the_lease",
        "store/test_under_pressure.py::"
        "test_a_replica_whose_pool_is_exhausted_refuses_and_keeps_its_lease",
    ),
    _row(
        "F46",
        "two releases side by side",
        "unit/test_hint.py::test_words_and_fields_of_a_newer_release_are_let_in",
        "stream/test_journal.py::test_nothing_is_read_back_past_a_hole_nor_of_unknown_kinds",
    ),
    _row("F47", "the disk is full", _FAULTS + "a_full_disk_is_waited_for"),
    # What users of such servers have met
    _row(
        "T01",
        "whenever a process is killed or asked to leave, the turn ends by itself",
        "chaos/test_accidents.py::test_a_replica_that_is_killed_is_replaced_wherever_it_was",
        "chaos/test_accidents.py::"
        "test_a_replica_that_leaves_or_is_frozen_loses_nothing_and_doubles_nothing",
    ),
    _row("T02", "a workspace that is stopped, rebuilt, out of reach", missing=WORKSPACE),
    _row(
        "T03 T04",
        "who reconnects a hundred times misses no part and sees none twice",
        _LIVE + "a_reader_elsewhere_that_comes_and_goes_a_hundred_times_misses_nothing",
        _TAKEOVER + "who_watches_a_chat_whose_worker_is_killed_sees_it_go_on",
    ),
    _row(
        "T05",
        "a crash between an effect and its commit: once, or said to be unknown",
        _ACCIDENT + "killed_when_a_tool_had_its_only_effect",
    ),
    _row(
        "T06",
        "so many statements a turn and no more, however long the chat",
        _ROUND + "a_new_chat_with_an_answer_is_two_statements",
        _ROUND + "the_next_turn_costs_the_same_however_long_the_chat_is",
    ),
    _row(
        "T07 T08",
        "a tool of ten minutes runs once; a half-open line does not hold chats up",
        _TOOLS + "a_tool_that_takes_ten_minutes_is_run_once",
        _LEASE + "a_tick_that_is_not_answered_is_given_up_and_another_one_made",
        "store/test_publish.py::test_a_line_gone_silent_is_given_up_and_the_hint_sent_on_another",
    ),
    _row(
        "T09",
        "a crash right after a message was taken",
        _ACCIDENT + "killed_right_after_the_message_was_taken",
    ),
    _row(
        "T10 T39",
        "a stop keeps exactly the text that was seen",
        _STOPS + "a_stop_keeps_exactly_what_was_seen_elsewhere",
        _REPLICAS + "a_stop_keeps_what_a_dead_replica_had_shown",
    ),
    _row(
        "T11 T37",
        "who comes back sees what tools say, also in a run that was taken over",
        _TOOLS + "viewers_see_a_tools_output_while_it_runs_and_history_does_not",
        _TAKEOVER + "who_watches_a_chat_whose_worker_is_killed_sees_it_go_on",
        missing="what subagents say: " + SUBAGENTS,
    ),
    _row(
        "T12 T38",
        "what is stored grows with what is said",
        _LONG + "what_is_stored_grows_with_what_is_said_and_not_with_its_square",
    ),
    _row(
        "T13",
        "a worker that wakes up late writes nothing and begins no tool",
        _ACCIDENT + "frozen_in_mid_answer",
        "store/test_tool_runs.py::test_a_worker_that_lost_its_chat_starts_nothing",
    ),
    _row(
        "T14 T15",
        "after a crash no chat stays busy",
        "chaos/test_accidents.py::test_a_replica_that_is_killed_is_replaced_wherever_it_was",
        _ORPHANS + "a_chat_that_is_ours_by_the_row_and_known_to_nobody_is_not_stuck",
    ),
    _row(
        "T16 T17",
        "fifty messages and fifty results at once: in order, none lost, one effect",
        _TURNS + "messages_that_come_all_at_once_are_answered_one_by_one",
        _TOOLS + "fifty_results_for_one_call_are_one_result",
    ),
    _row(
        "T18 T22 T23 T24 T43",
        "after any crash the model takes the history and answers the next message",
        "chaos/test_accidents.py::everybody_goes_on",
        "providers/test_any_history.py::test_a_request_of_any_history_is_taken",
    ),
    _row(
        "T19 T20",
        "a process that was frozen is not wedged, nor is its chat",
        _ACCIDENT + "frozen_in_mid_answer",
        _LEASE + "with_a_lost_lease_everything_stops_and_goes_on_when_it_is_back",
    ),
    _row(
        "T21 T30",
        "servers are restarted in mid-stream: the stream goes on",
        _ROLLING + "nobody_notices_that_servers_are_restarted",
    ),
    _row(
        "T25",
        "a stop with three messages in the queue",
        _STOPS + "a_stop_with_a_queue_keeps_its_order",
    ),
    _row(
        "T26 T27",
        "the same request five times is one message and one run",
        _KEYS + "a_message_that_is_sent_twice_under_one_key_is_there_once",
        _KEYS + "a_chat_that_is_created_twice_under_one_key_is_there_once",
    ),
    _row(
        "T28",
        "many turns leave nothing behind",
        _TURNS + "nothing_is_left_over_after_two_hundred_turns",
        missing="ten thousand of them: make soak",
    ),
    _row(
        "T29",
        "a chat of 20,000 messages holds nobody up",
        _LONG + "a_chat_of_twenty_thousand_messages_is_a_chat_like_any_other",
    ),
    _row(
        "T31 T46",
        "a turn that was stopped or failed leaves a history that can be read and gone on from",
        _TURNS + "a_lasting_failure_ends_in_an_error_that_says_why",
        _TURNS + "a_stop_during_a_tool_ends_the_turn_and_answers_the_call",
        "unit/test_moves_send.py::test_sending_answers_the_calls_of_a_failed_turn_first",
    ),
    _row(
        "T32",
        "a reload in mid-answer shows the text so far",
        _LIVE + "one_that_comes_late_sees_the_text_so_far",
        _TAKEOVER + "who_watches_a_chat_whose_worker_is_killed_sees_it_go_on",
    ),
    _row(
        "T33 T41 T45",
        "a stop works from anywhere",
        _STOPS + "a_stop_works_from_a_replica_that_does_not_run_the_chat",
        _STOPS + "a_stop_keeps_exactly_what_was_seen_elsewhere",
    ),
    _row(
        "T34",
        "any server serves any viewer",
        _LIVE + "viewers_here_and_elsewhere_see_the_same_parts",
        _ROLLING + "nobody_notices_that_servers_are_restarted",
    ),
    _row(
        "T35 T44",
        "another attempt starts the preview over, and nothing is shown twice",
        _LIVE + "another_attempt_starts_the_preview_over",
        _LIVE + "what_a_failed_step_still_says_is_not_shown",
    ),
    _row(
        "T36",
        "the database dies during a takeover, a departure and an answer",
        _TAKEOVER + "a_database_that_is_killed_in_between_strands_nobody",
    ),
    _row(
        "T40 T42",
        "a client that was asked answers after a restart: one call, one result",
        _TOOLS + "a_client_that_is_asked_may_answer_another_replica",
        _TOOLS + "fifty_results_for_one_call_are_one_result",
    ),
    _row("T47", "no process of a tool is forgotten", missing=WORKSPACE),
)
