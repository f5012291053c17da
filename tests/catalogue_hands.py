"""What hands must be able to do and must refuse, and the tests that hold them to it.

Six groups, from the files of a workspace to what a model is told of it. `tests` are node ids
without `test_`; `apart` says what of a line is not here and why. `tests/hands/test_catalogue.py`
checks that every line has a test or a reason, and that the tests exist. `HOSTILE` is what a
workspace may try against the server, its neighbours and the host.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Line(Struct, frozen=True):
    text: str
    tests: tuple[str, ...] = ()
    apart: str | None = None


_READ = "agent/test_files_read.py::"
_WRITE = "agent/test_files_write.py::"
_EDIT = "agent/test_edit_files.py::"
_MATCH = "agent/test_edit_matching.py::"
_INDENT = "agent/test_edit_indent.py::"
_ANY_EDIT = "agent/test_edit_properties.py::"
_PATHS = "agent/test_files_paths.py::"
_ROUTES = "agent/test_http_routes.py::"
_LIFE = "agent/test_process_life.py::"
_TABLE = "agent/test_process_table.py::"
_AROUND = "agent/test_process_surroundings.py::"
_WAIT = "agent/test_process_waiting.py::"
_VIEW = "agent/test_headtail_view.py::"
_RESOLVE = "agent/test_context_resolve.py::"
_EXECUTE = "tools/test_execute.py::"
_COMMANDS = "tools/test_commands.py::"
_MAKE = "tools/test_workspace_tools.py::"
_RULES = "unit/test_workspace_rules.py::"
_LAZY = "workspaces/test_dial_lazily.py::"
_TURN = "workspaces/test_dial_turn.py::"
_AROUND_BUILDS = "workspaces/test_build_surroundings.py::"
_BRIEF = "workspaces/test_briefing.py::"
_TEXT = "unit/test_prompt_text.py::"
_STOP = "workspaces/test_autostop.py::"
_WALLS = "workspaces/test_sandbox_walls.py::"
_IMPOSTOR = "workspaces/test_client_hostile.py::"
_HOSTILE = "hands/test_hostile.py::"
_SCENES = "hands/test_scenarios.py::"

FILES: Final = (
    Line(
        "bytes: a bad path or number, a file that is missing, none, or forbidden",
        (
            _READ + "a_path_that_cannot_be_read_is_refused_with_the_reason",
            _READ + "negative_numbers_are_refused",
            _READ + "a_file_that_may_not_be_read_is_forbidden",
            _ROUTES + "what_cannot_be_done_is_refused_with_words",
        ),
    ),
    Line(
        "bytes: any window of a file, and its type",
        (
            _READ + "a_window_of_bytes",
            _READ + "the_type_comes_from_the_name",
            _ROUTES + "files_are_listed_resolved_and_read_raw",
        ),
    ),
    Line(
        "a write: where it may not be, and parents that it makes",
        (
            _WRITE + "paths_that_cannot_be_written_are_refused",
            _WRITE + "what_may_not_be_written_is_forbidden_and_stays",
            _WRITE + "a_new_file_gets_its_parents_and_the_mode_of_the_umask",
        ),
    ),
    Line(
        "a write that fails changes nothing; mode and links stay",
        (
            _WRITE + "a_failure_leaves_the_old_content_and_nothing_else",
            _WRITE + "an_existing_mode_is_kept",
            _WRITE + "a_link_is_followed_and_stays_a_link",
        ),
    ),
    Line(
        "an edit that says too little, or of what cannot be edited or written",
        (
            _EDIT + "everything_wrong_with_a_request_is_said_at_once",
            _EDIT + "a_file_that_may_not_be_written_is_forbidden",
            _EDIT + "a_write_that_fails_late_says_what_is_written_already",
        ),
    ),
    Line(
        "edits one after the other, of several lines and files; not unique; all of them",
        (
            _EDIT + "edits_are_made_in_order_each_on_the_result_of_the_one_before",
            _EDIT + "diffs_come_in_the_order_of_the_files",
            _MATCH + "a_match_that_is_not_unique_is_refused_with_the_count",
            _MATCH + "replace_all_replaces_every_match_of_the_first_kind_that_there_is",
        ),
    ),
    Line(
        "a search that is nearly right: blanks at the end, tabs, depth; exact goes first",
        (
            _MATCH + "the_closest_match_is_taken",
            _MATCH + "blanks_at_the_end_of_lines_are_the_files_unless_the_edit_is_about_them",
            _INDENT + "spaces_for_tabs_with_a_line_put_in_deeper",
            _INDENT + "a_block_shown_without_its_outer_indent",
            _INDENT + "blanks_that_are_mixed_are_inherited",
            _ANY_EDIT + "an_exact_match_is_always_preferred",
            _ANY_EDIT + "nothing_outside_the_match_changes",
            _ANY_EDIT + "endings_and_the_final_newline_are_kept",
            _ANY_EDIT + "a_refused_edit_leaves_the_file_untouched",
        ),
    ),
    Line(
        "all matches of a search that is nearly right",
        (
            _MATCH + "replace_all_replaces_every_match_of_the_first_kind_that_there_is",
            _INDENT + "every_match_is_indented_for_itself",
            _ANY_EDIT + "replace_all_replaces_as_many_as_there_are",
        ),
    ),
    Line(
        "errors are told together; one bad file stops all; mode and links stay",
        (
            _EDIT + "one_bad_file_keeps_all_from_being_written_and_all_errors_are_joined",
            _EDIT + "mode_and_bytes_that_are_not_utf8_are_kept",
            _WRITE + "a_link_is_followed_and_stays_a_link",
        ),
    ),
    Line(
        "paths that were written are noted for the chat and those above it, and no others",
        (
            "agent/test_git_watch.py::paths_are_kept_for_a_chat_and_those_above_it",
            "hands/test_touched.py::only_what_was_written_for_a_chat_is_noted",
        ),
    ),
    Line(
        "lines: refused paths, windows, long lines, large files",
        (
            _READ + "a_path_that_cannot_be_read_is_refused_with_the_reason",
            _READ + "lines_are_numbered",
            _READ + "an_offset_past_the_end_is_told_how_many_lines_there_are",
            _READ + "a_file_over_the_limit_by_one_byte_is_refused",
            "tools/test_files.py::what_the_agent_refuses_is_told_without_noise",
        ),
    ),
    Line(
        "a directory: missing, forbidden, none, home and root, in order",
        (
            _PATHS + "what_cannot_be_listed_is_refused",
            _PATHS + "a_directory_that_may_not_be_listed_is_forbidden",
            _PATHS + "the_home_directory_and_the_root",
            _PATHS + "a_directory_is_listed_with_directories_first",
        ),
    ),
)

PROCESSES: Final = (
    Line(
        "a start, waited for or not; bad requests; where it runs",
        (
            _LIFE + "a_command_is_started_awaited_and_read",
            _LIFE + "an_empty_command_is_refused",
            _ROUTES + "what_cannot_be_done_is_refused_with_words",
            _AROUND + "the_working_directory_is_the_requested_one_else_the_usual_one_else_home",
            _AROUND + "a_working_directory_that_is_none_is_refused_by_name",
            _EXECUTE + "a_command_in_the_background_is_not_waited_for",
        ),
    ),
    Line(
        "the environment: of the request, of the template, and which one wins",
        (
            _AROUND + "the_later_environment_wins_and_the_chat_comes_last",
            _AROUND + "a_command_sees_its_own_environment_and_nothing_of_the_agents",
        ),
    ),
    Line(
        "the list: empty, of one chat, those that run first, ten at most",
        (
            _TABLE + "a_chat_without_commands_has_an_empty_list",
            _TABLE + "another_chats_command_is_as_if_it_did_not_exist",
            _TABLE + "those_that_run_come_first_then_the_newest_and_ten_at_most",
        ),
    ),
    Line(
        "output: of what runs and what ended, of nobody's, waited for by one or many",
        (
            _WAIT + "a_look_does_not_wait",
            _WAIT + "a_wait_that_is_over_shows_what_there_is",
            _WAIT + "the_end_wakes_everybody_who_waits",
            _WAIT + "who_waits_after_the_end_is_answered_at_once",
            _TABLE + "another_chats_command_is_as_if_it_did_not_exist",
            _ROUTES + "what_cannot_be_done_is_refused_with_words",
        ),
    ),
    Line(
        "signals: both kinds, to nobody, too late, and what is no signal",
        (
            _LIFE + "who_ignores_a_request_to_end_can_be_killed",
            _LIFE + "the_whole_group_is_signalled",
            _TABLE + "signals_are_refused_that_make_no_sense",
        ),
    ),
    Line(
        "from start to end: codes, signals, much output, both pipes, news of the end",
        (
            _LIFE + "a_command_is_started_awaited_and_read",
            _LIFE + "the_exit_code_is_the_shells_and_minus_one_after_a_signal",
            _LIFE + "more_output_than_is_kept_is_truncated",
            _LIFE + "whoever_listens_is_told_of_the_end",
        ),
    ),
    Line(
        "what is kept of the output: head, tail, long lines, whatever the pieces",
        (
            _VIEW + "nothing_written_is_nothing_seen",
            _VIEW + "what_fits_into_the_head_is_whole",
            _VIEW + "what_fits_into_head_and_tail_loses_nothing_but_is_called_truncated",
            _VIEW + "one_byte_more_is_omitted_and_said_to_be",
            _VIEW + "a_long_line_at_the_beginning_and_one_at_the_end_are_cut",
            _VIEW + "many_small_writes_are_as_one_large_one",
            _VIEW + "memory_is_bounded_however_much_is_written",
            _VIEW + "the_view_is_that_of_a_buffer_that_keeps_everything",
        ),
        apart="writers at once, resets and copies: one loop writes, and nobody resets or copies",
    ),
)

EXECUTE: Final = (
    Line(
        "a command that is none; every way in which an ampersand can end one",
        (
            _EXECUTE + "a_call_without_a_command_is_told_what_is_missing",
            _COMMANDS + "an_ampersand_at_the_end_means_the_background",
            _EXECUTE + "an_ampersand_puts_a_command_into_the_background",
        ),
    ),
    Line(
        "success, failure, background, and a time that is up",
        (
            _EXECUTE + "a_command_is_run_and_told_about",
            _EXECUTE + "nothing_waits_for_a_person_and_nothing_of_the_server_leaks",
            _EXECUTE + "a_command_that_fails_is_no_success",
            _EXECUTE + "a_command_in_the_background_is_not_waited_for",
            _EXECUTE + "a_command_that_takes_too_long_runs_on_and_can_be_found",
        ),
    ),
    Line(
        "no start, no output, a line that breaks while it runs or after it",
        (
            _EXECUTE + "a_command_that_cannot_be_started_says_why",
            _EXECUTE + "a_line_that_breaks_is_no_matter_if_the_command_has_ended",
            _EXECUTE + "a_line_that_breaks_leaves_a_command_that_can_be_found",
            _EXECUTE + "a_line_that_stays_broken_still_names_the_command",
        ),
    ),
    Line(
        "no workspace; output that is cut, between characters; advice on reading files",
        (
            _EXECUTE + "a_workspace_that_cannot_be_reached_is_an_answer",
            _COMMANDS + "too_much_output_keeps_both_ends_and_whole_characters",
            _EXECUTE + "endless_output_keeps_both_ends_and_says_so",
            _COMMANDS + "who_dumps_files_is_told_of_a_better_way",
            _EXECUTE + "dumping_a_file_is_answered_with_advice",
        ),
    ),
)

WORKSPACE_TOOLS: Final = (
    Line(
        "waiting for an agent: it comes, it does not, its scripts fail",
        (
            _MAKE + "a_workspace_is_made_and_waited_for",
            _MAKE + "an_agent_that_comes_late_is_waited_for",
            _MAKE + "an_agent_that_never_comes_is_no_failure",
            _MAKE + "scripts_that_end_badly_are_told_and_no_failure",
        ),
        apart="without a dialler or a database: the roof always gives both",
    ),
    Line(
        "the time to live: the operator's, the template's, none, and nonsense",
        (
            _MAKE + "the_workspace_is_given_the_templates_time_to_live",
            _RULES + "the_operators_ttl_counts_if_it_is_one",
        ),
        apart="that it cannot be read: it comes with the settings, which are there",
    ),
    Line(
        "a chat that has one: connected, connecting, gone, deleted",
        (
            _RULES + "what_is_next_follows_from_how_it_stands",
            _MAKE + "a_chat_that_has_a_workspace_keeps_it",
            _MAKE + "a_workspace_whose_agent_is_gone_is_replaced",
            _MAKE + "a_workspace_that_is_deleted_is_replaced",
        ),
    ),
    Line(
        "a start: of nothing, of what runs, of what is stopped or deleted",
        (
            _RULES + "what_is_next_follows_from_how_it_stands",
            _MAKE + "without_a_workspace_there_is_nothing_to_start_or_stop",
            _MAKE + "a_stopped_workspace_is_to_be_started",
        ),
    ),
    Line(
        "templates that chats may use, listed, read and made from, and no others",
        (
            "unit/test_workspace_templates.py::what_chats_may_not_use_is_not_shown",
            _MAKE + "a_template_that_is_not_for_chats_is_refused",
            _MAKE + "templates_are_listed_with_what_to_do_next",
        ),
    ),
    Line("plans that are written to a file", apart="there is no mode for plans yet"),
    Line(
        "whole chats that create and start; subagents without these tools; what is told of it",
        (
            _SCENES + "a_workspace_made_in_mid_turn_is_bound_when_it_is_first_used",
            _SCENES + "a_new_chat_in_a_stopped_workspace_dials_nobody_until_it_is_started",
            _SCENES + "a_subagent_has_no_say_in_workspaces",
            "hands/test_demo.py::the_demo_mends_its_bug_and_cannot_look_over_the_wall",
        ),
    ),
)

BINDING: Final = (
    Line(
        "a fast dial is not checked; a slow one is: the same, none, another",
        (
            _LAZY + "a_fast_dial_asks_nobody",
            _LAZY + "a_slow_dial_to_the_right_agent_is_kept",
            _LAZY + "a_slow_dial_fails_at_once_when_there_is_no_agent",
            _LAZY + "a_slow_dial_to_another_agent_than_the_latest_is_switched",
        ),
    ),
    Line(
        "what comes late is released once, what failed is not, and nobody waits for it",
        (
            _LAZY + "a_switch_does_not_wait_for_the_stale_dial_and_releases_its_late_success_once",
            _LAZY + "a_late_failure_of_a_stale_dial_releases_nothing",
        ),
    ),
    Line(
        "a fast failure: another agent, the same again, none, no database, a stop",
        (
            _LAZY + "a_fast_failure_switches_to_the_latest_agent",
            _LAZY + "after_a_fast_failure_the_right_agent_is_dialled_once_more",
            _LAZY + "and_not_a_third_time",
            _LAZY + "a_slow_dial_that_cannot_be_checked_is_waited_for",
            _LAZY + "a_dial_that_has_failed_after_a_stop_is_not_looked_into",
            _SCENES + "a_dial_that_cannot_be_checked_is_waited_for",
        ),
    ),
    Line(
        "the binding is believed, filled when empty, repaired when stale, cleared when wrong",
        (
            _TURN + "the_bound_agent_is_used_without_looking_for_the_latest",
            _TURN + "a_chat_that_is_bound_to_nothing_yet_is_bound_to_the_latest",
            _TURN + "a_binding_to_an_agent_that_is_no_more_is_repaired",
            _TURN + "a_switch_is_remembered",
            _TURN + "a_stopped_workspace_fails_at_once_for_a_chat_that_is_not_bound",
            _TURN + "selecting_a_workspace_releases_the_connection_to_the_other",
            _TURN + "a_bound_agent_of_another_workspace_is_not_used",
            _SCENES + "a_later_turn_in_a_running_workspace_asks_for_its_agent_only",
            _SCENES + "a_new_chat_in_a_running_workspace_is_bound_and_told",
            _SCENES + "a_workspace_that_was_built_anew_is_found_and_remembered",
        ),
    ),
    Line(
        "the row is read again only while there is no workspace, and an error is told",
        (
            _TURN + "a_chat_without_a_workspace_is_told_to_create_one_until_it_has",
            _TURN + "a_row_that_cannot_be_read_is_told",
        ),
    ),
    Line(
        "a stopped workspace: one dial, an error, a way out, and the chat goes on",
        (
            _TURN + "a_stopped_workspace_costs_a_bound_chat_one_dial_and_five_seconds",
            _SCENES + "a_stopped_workspace_costs_one_dial_and_the_model_may_start_it",
        ),
    ),
    Line(
        "use moves the deadline; without a workspace there is none to move",
        (
            _STOP + "use_is_written_once_a_minute_and_lets_it_run_longer",
            "store/test_workspace_rows.py::a_stopped_workspace_has_no_deadline_to_move",
            "store/test_workspace_rows.py::use_moves_the_deadline_as_the_rule_says",
        ),
    ),
)

INSTRUCTIONS: Final = (
    Line(
        "files of instructions: found, missing, cut, cleaned, told once, asked for again",
        (
            _RESOLVE + "instructions_and_skills_are_found_in_their_fixed_places",
            _RESOLVE + "an_empty_workspace_has_a_context_without_resources",
            _RESOLVE + "a_file_over_the_limit_gives_its_beginning_only",
            _TEXT + "instructions_are_cleaned",
            _TEXT + "the_files_of_a_workspace_share_one_block",
            _TEXT + "a_file_that_was_cut_says_so",
            _TEXT + "without_content_there_is_no_block",
            _TEXT + "instructions_come_in_one_order",
            _BRIEF + "the_instructions_of_the_workspace_are_told_once_in_a_turn",
            _BRIEF + "a_workspace_that_does_not_answer_is_asked_again_in_the_next_turn",
            _BRIEF + "a_file_that_was_cut_is_said_to_be",
            _AROUND_BUILDS + "another_agent_is_pinned_as_soon_as_it_has_spoken",
        ),
    ),
    Line(
        "what is taken out of a text, what stays, and how lines are evened",
        (
            _TEXT + "the_list_of_invisible_characters_is_the_one_that_was_agreed_on",
            _TEXT + "a_character_that_nobody_sees_is_taken_out",
            _TEXT + "what_writing_needs_is_kept",
            _TEXT + "lines_are_made_even",
        ),
    ),
    Line(
        "a cache of settings with a time to live",
        apart="there is none: models are read in the background and kept as a whole,"
        " all other settings are read once",
    ),
)

HOSTILE: Final = (
    Line(
        "output without end",
        (
            _LIFE + "an_endless_printer_is_read_and_can_be_killed",
            _VIEW + "memory_is_bounded_however_much_is_written",
            _EXECUTE + "endless_output_keeps_both_ends_and_says_so",
            _HOSTILE + "a_hostile_workspace_is_bounded_refused_and_nobody_elses_trouble",
        ),
    ),
    Line(
        "a fork bomb, all of the memory",
        (
            _WALLS + "a_fork_bomb_is_bounded_and_the_others_do_not_notice",
            _WALLS + "memory_is_bounded",
            _HOSTILE + "a_hostile_workspace_is_bounded_refused_and_nobody_elses_trouble",
        ),
    ),
    Line(
        "a file of ten gigabytes, a full disk",
        (
            _WALLS + "a_file_cannot_grow_over_the_limit",
            "workspaces/test_local_levels.py::whoever_fills_the_disk_is_ended_and_can_clean_up",
            _HOSTILE + "a_hostile_workspace_is_bounded_refused_and_nobody_elses_trouble",
        ),
    ),
    Line(
        "links that lead out",
        (
            _RESOLVE + "links_count_inside_their_root_only",
            _IMPOSTOR + "a_link_to_another_socket_is_not_followed",
            "workspaces/test_local_removal.py::a_hostile_tree_is_removed_and_nothing_else",
            "workspaces/test_local_seeds.py::a_directory_is_copied_with_links_as_links",
        ),
    ),
    Line(
        "an agent that redirects",
        (
            _IMPOSTOR + "a_redirect_is_not_followed",
            _IMPOSTOR + "a_signed_redirect_is_only_a_refusal",
            _HOSTILE + "a_hostile_workspace_is_bounded_refused_and_nobody_elses_trouble",
        ),
    ),
    Line(
        "an agent that never answers, drips, or answers without end",
        (
            _IMPOSTOR + "silence_ends",
            _IMPOSTOR + "a_body_that_drips_ends_however_busily_it_comes",
            _IMPOSTOR + "an_endless_body_is_cut_off",
            _IMPOSTOR + "endless_headers_are_cut_off",
            _BRIEF + "an_agent_that_never_answers_holds_no_turn_up",
            _SCENES + "an_agent_that_never_answers_holds_up_nobody_else",
        ),
    ),
    Line(
        "another workspace's key, another workspace's agent",
        (
            _IMPOSTOR + "a_reply_without_the_right_mac_is_not_believed",
            _IMPOSTOR + "another_agent_with_the_same_key_is_not_the_one_that_was_meant",
            _HOSTILE + "a_hostile_workspace_is_bounded_refused_and_nobody_elses_trouble",
        ),
    ),
    Line(
        "the host, the server and other workspaces",
        (
            _WALLS + "the_home_of_the_host_cannot_be_read",
            _WALLS + "other_workspaces_cannot_be_seen",
            _WALLS + "there_is_no_network",
            _WALLS + "no_process_inherits_anything_of_the_server",
            "hands/test_demo.py::the_demo_mends_its_bug_and_cannot_look_over_the_wall",
        ),
    ),
)

SIZES: Final = {
    "files": 12,
    "processes": 7,
    "execute": 4,
    "workspace tools": 7,
    "binding": 7,
    "instructions": 3,
    "hostile": 8,
}
CATALOGUE: Final[Mapping[str, tuple[Line, ...]]] = {
    "files": FILES,
    "processes": PROCESSES,
    "execute": EXECUTE,
    "workspace tools": WORKSPACE_TOOLS,
    "binding": BINDING,
    "instructions": INSTRUCTIONS,
    "hostile": HOSTILE,
}
