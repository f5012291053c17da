"""What the loop must do, rule by rule, and the tests that hold it to that.

Each rule has a short name, and the tests that would fail without it as `file::test`, the file
without `test_` and `.py` and within `tests/unit`, unless another room is named before it. Rules
that only a server can show are in `ELSEWHERE`, with the room whose tests must show them.
`test_catalogue_loop` checks that every test named here exists.
"""

from collections.abc import Mapping
from typing import Final

Rules = Mapping[str, tuple[str, ...]]

LOOP: Final[Rules] = {
    "the second prompt of a turn holds the call and its result": (
        "prompt::test_a_turn_with_a_tool_is_told_as_it_happened",
    ),
    "a limit that nobody reports is the configured one": (
        "step_rows::test_an_answer_becomes_one_message_with_all_that_is_known_of_the_call",
    ),
    "the provider's results stand in the answer, ours in messages of the tool": (
        "step_rows::test_the_providers_own_results_stay_inside_the_answer_in_their_order",
        "step_rows::test_results_become_one_message_each_in_the_order_of_the_calls",
        "assemble::test_the_providers_own_calls_keep_their_ids_and_results_stand_beside_them",
    ),
    "blank text and reasoning are not sent again": (
        "prompt::test_blank_parts_are_left_out_and_so_are_messages_of_nothing_else",
    ),
    "an interrupt in mid-stream keeps text and half-said calls": (
        "assemble::test_what_is_open_at_an_interrupt_follows_in_the_order_in_which_it_was_begun",
        "assemble::test_an_interrupt_before_the_first_word_leaves_nothing",
        "assemble::test_an_interrupted_answer_has_no_usage",
    ),
    "calls without a result are answered with an error": (
        "prompt_repair::test_a_call_without_a_result_gets_an_error_for_one",
    ),
    "timer and release of the guard settle once": (
        "silence::test_a_reader_that_lets_go_first_is_not_disturbed_by_the_timer",
        "silence::test_a_timer_that_fires_first_is_not_undone_by_the_reader",
        "silence::test_a_guard_that_was_released_leaves_the_streams_own_end",
    ),
    "whatever ends a stream after the guard fired may be tried again": (
        "silence::test_whatever_ends_a_stream_after_the_guard_fired_is_silence",
    ),
    "every event arms the guard again": (
        "silence::test_every_event_gives_the_stream_its_whole_time_again",
        "silence::test_the_guard_fires_when_its_time_has_come_and_not_before",
    ),
    "the configured provider's name is the one that is shown": (
        "classify::test_the_configured_provider_counts_more_than_the_text",
        "classify::test_a_provider_that_is_hinted_later_renames_the_message_and_keeps_the_wait",
    ),
    "a cut HTTP/2 stream may be tried again": (
        "classify::test_a_reset_passes_if_the_peer_sent_it_with_a_code_that_passes",
    ),
    "a signature survives pieces without one": (
        "assemble::test_reasoning_keeps_its_signature_when_later_pieces_have_none",
        "assemble::test_a_newer_signature_takes_the_place_of_an_older_one",
    ),
    "sealed reasoning is kept, also by an interrupt": (
        "assemble::test_sealed_reasoning_without_a_word_is_kept",
    ),
    "blocks stand in the order of their completion": (
        "assemble::test_blocks_stand_in_the_order_in_which_they_were_completed",
    ),
    "a piece is shown even if nobody told of its beginning": (
        "assemble::test_text_whose_beginning_was_never_told_is_shown_and_kept_all_the_same",
    ),
    "the whole call counts": (
        "assemble::test_the_whole_call_counts_and_not_its_pieces",
        "assemble::test_a_call_cut_short_at_the_end_of_an_answer_is_not_taken_for_one_without_input",
    ),
    "an id names one call in all of a chat": (
        "assemble::test_two_calls_of_one_id_become_two_calls",
        "assemble::test_an_id_that_an_earlier_answer_used_is_not_used_again",
    ),
    "an exclusive tool beside others refuses all": (
        "batch::test_a_tool_that_must_be_alone_stops_the_whole_batch",
        "batch::test_two_calls_that_must_be_alone_stop_each_other",
        "batch::test_a_tool_that_must_be_alone_runs_alone",
    ),
    "serial tools run last, in the order of their calls": (
        "batch::test_calls_run_together_and_serial_ones_afterwards_in_their_order",
        "batch::test_results_are_told_in_the_order_of_the_calls",
    ),
    "media are encoded once, and what is not text is mended": (
        "tool_output::test_media_are_encoded_once_with_their_text",
        "tool_output::test_halves_of_characters_are_replaced_by_the_mark_for_it",
    ),
    "a former name finds its tool; one that may not be called is refused": (
        "batch::test_a_former_name_finds_the_tool",
        "batch::test_a_former_name_of_nothing_is_unknown",
        "batch::test_a_tool_that_is_not_active_is_refused_even_by_a_former_name",
        "batch::test_an_unknown_name_is_answered_with_the_names_there_are",
    ),
    "input that is not one JSON object is refused before anything runs": (
        "batch::test_arguments_must_be_a_json_object",
        "batch::test_input_that_two_readers_could_read_differently_is_refused",
    ),
    "a filtered answer is an error unless something was visibly said": (
        "assemble::test_an_answer_that_was_filtered_before_a_word_was_said_is_an_error",
        "assemble::test_what_was_visibly_said_is_kept_though_the_rest_was_filtered",
    ),
    "an answer without content adds nothing": (
        "assemble::test_an_answer_without_content_ends_the_turn_and_adds_nothing",
    ),
    "the time of a call is that of the call alone": (
        "step_rows::test_time_is_counted_in_whole_milliseconds_or_not_at_all",
    ),
    "a result has a budget": ("tool_output::test_one_result_may_take_a_third_of_the_context",),
    "a result over its budget is cut in the middle": (
        "tool_output::test_what_fits_is_not_touched",
        "tool_output::test_of_what_does_not_fit_the_head_and_the_tail_are_kept_and_the_rest_is_counted",
        "tool_output::test_a_character_is_never_cut_in_two",
        "tool_output::test_a_tiny_budget_leaves_a_head_without_a_marker",
    ),
    "a batch has a budget, too": (
        "tool_output::test_results_that_fit_only_alone_share_the_room_of_one",
        "tool_output::test_a_small_result_keeps_all_it_has_beside_a_large_one",
    ),
    "the size of a prompt can be told": (
        "summary::test_a_prompt_that_is_too_long_is_made_half_as_long_and_stays_in_order",
    ),
}

CONTEXT_LIMIT: Final[Rules] = {
    "names are compared without case and punctuation": (
        "context_limit::test_a_name_that_means_the_size_of_the_context_is_recognized",
    ),
    "objects and lists are looked into, and the largest counts": (
        "context_limit::test_the_largest_of_several_counts_wherever_it_stands",
        "context_limit::test_a_list_at_the_top_is_looked_into",
    ),
    "only a positive whole number counts, in any form": (
        "context_limit::test_only_a_positive_whole_number_is_a_size",
    ),
    "no metadata, no limit": ("context_limit::test_where_nothing_is_said_nothing_is_found",),
    "other names are told apart by their words": (
        "context_limit::test_a_name_that_means_something_else_is_not",
    ),
}

COMPACTION: Final[Rules] = {
    "needed from the threshold on, and not below": (
        "compaction::test_compaction_is_needed_from_the_threshold_on",
        "summary::test_three_rows_hold_a_summary",
    ),
    "the summary is the user's word in the next prompt": (
        "summary::test_after_a_summary_the_model_is_told_the_summary_as_the_users_word",
    ),
    "asked for by a person, it needs neither threshold nor usage": (
        "decide::test_a_requested_compaction_needs_neither_a_limit_nor_a_threshold",
    ),
    "three rows: roles, who sees them, compressed, source, time": (
        "summary::test_three_rows_hold_a_summary",
        "summary::test_a_summary_that_was_asked_for_by_a_person_says_so",
        "summary::test_the_call_for_a_summary_is_paid_for_on_its_own_row",
        "summary::test_the_call_that_is_shown_first_is_the_one_that_is_stored",
    ),
    "still too full after a summary is an error, judged by the first answer": (
        "compaction::test_a_summary_that_did_not_help_is_not_followed_by_another",
        "decide::test_a_summary_that_did_not_help_fails_the_turn",
    ),
    "asked for, it comes before the end of the turn and after open calls": (
        "decide::test_a_requested_compaction_comes_before_the_end_of_the_turn",
        "decide::test_a_requested_compaction_waits_for_open_calls",
        "decide::test_a_requested_compaction_of_nothing_ends_the_turn",
    ),
    "the newest count counts, and the total if nothing else is known": (
        "compaction::test_the_newest_answer_that_was_counted_is_measured",
        "compaction::test_the_context_is_what_was_read_cached_or_not_and_else_the_total",
    ),
    "of two models the smaller context counts": (
        "summary::test_of_two_contexts_the_smaller_counts",
    ),
    "for another provider searches become words and files a note": (
        "foreign::test_a_search_is_told_in_words",
        "foreign::test_a_search_outside_an_answer_is_left_out",
        "foreign::test_a_file_that_would_not_be_shown_leaves_a_word_behind",
        "foreign::test_media_of_a_tool_leave_a_word_behind",
        "foreign::test_the_prompt_that_is_flattened_stays_as_it_was",
    ),
    "the request is the whole prompt and an instruction, without tools to call": (
        "summary::test_a_summary_is_asked_for_at_the_end_of_the_whole_prompt",
        "summary::test_the_instruction_asks_for_all_that_a_successor_needs",
        "summary::test_a_hint_is_added_to_the_request",
    ),
    "an empty summary is none, a failed one is shown as failed": (
        "summary::test_an_answer_without_text_is_no_summary",
        "summary::test_a_failed_summary_is_shown_as_one",
    ),
    "an overflow leads to one summary": (
        "retry::test_a_prompt_that_is_too_long_leads_to_a_summary_if_there_is_something_to_summarize",
        "summary::test_a_prompt_that_is_too_long_is_made_half_as_long_and_stays_in_order",
    ),
}

RETRY: Final[Rules] = {
    "the wait doubles up to a minute": ("retry::test_the_wait_doubles_up_to_a_minute",),
    "what passes is tried again, what does not is not": (
        "retry::test_what_passes_is_tried_again_after_the_wait_of_its_attempt",
        "retry::test_what_does_not_pass_is_not_tried_again",
    ),
    "25 attempts in all": ("retry::test_the_twenty_fifth_attempt_is_the_last",),
    "the provider's wait counts if it is longer": (
        "retry::test_a_longer_wait_that_the_provider_asks_for_is_kept_and_a_shorter_one_is_not",
        "retry::test_a_provider_that_asks_for_hours_is_an_error_and_not_a_wait",
    ),
    "viewers are told of the wait": (
        "retry::test_viewers_are_told_which_attempt_failed_why_and_when_the_next_begins",
        "retry::test_a_failure_without_provider_and_status_is_told_without_them",
    ),
    "a cancellation counts only if nothing else is known": (
        "classify::test_a_cancellation_counts_only_if_nothing_else_is_known",
    ),
}

ERRORS: Final[Rules] = {
    "every pattern has its kind": (
        "classify::test_the_words_and_numbers_of_an_error_tell_its_kind",
        "classify::test_a_prompt_that_is_too_long_is_a_kind_of_its_own",
        "classify::test_a_body_that_is_too_large_to_be_read_counts_as_too_long",
    ),
    "the more telling of two patterns wins": (
        "classify::test_where_two_rules_match_the_more_telling_one_wins",
        "classify::test_an_overflow_counts_more_than_the_word_for_a_rate_limit",
    ),
    "what was classified before stays so": (
        "classify::test_what_was_classified_where_it_arose_stays_so_however_it_is_wrapped",
        "classify::test_a_providers_failure_is_found_under_other_exceptions",
    ),
    "a status is read from text, ports and stream ids are not": (
        "classify::test_a_status_is_read_from_text_but_never_made_up",
        "classify::test_the_number_of_a_stream_is_not_a_status",
        "classify::test_a_status_the_provider_gave_counts_more_than_one_in_the_text",
    ),
    "the provider is found in the text, the most specific first": (
        "classify::test_the_provider_is_known_by_what_the_text_says_most_specifically",
    ),
    "waits in milliseconds, seconds and dates are read": (
        "retry::test_the_wait_is_read_from_the_headers",
        "retry::test_a_date_is_measured_by_the_clock_that_made_it",
    ),
    "an error carries all its fields": ("classify::test_an_error_carries_all_that_clients_show",),
    "a stream that stops short may be tried again": (
        "classify::test_a_stream_that_stops_short_may_be_asked_again",
    ),
    "a broken conversation is told without ids": (
        "classify::test_a_broken_conversation_at_the_vendor_is_told_without_ids",
    ),
    "HTTP/2: codes, who sent them, and a status before both": (
        "classify::test_a_reset_passes_if_the_peer_sent_it_with_a_code_that_passes",
        "classify::test_a_status_beats_what_the_transport_says_of_the_stream",
    ),
    "a vendor's own word counts by how much it says": (
        "classify::test_a_precise_word_of_the_vendor_counts_before_the_rules_and_a_vague_one_after",
    ),
    "what only the body says counts": ("classify::test_what_only_the_body_says_counts_too",),
    "the most specific message is quoted": (
        "error_text::test_the_most_specific_message_in_a_body_is_quoted",
        "error_text::test_a_message_wrapped_into_the_text_of_an_error_is_found",
        "error_text::test_a_text_of_braces_does_not_take_for_ever",
    ),
    "quotes are short and without secrets": (
        "error_text::test_a_quote_is_bounded",
        "error_text::test_what_may_hold_a_secret_is_taken_out",
        "error_text::test_secrets_are_taken_out_of_bodies_too",
        "error_text::test_the_raw_text_of_a_refused_key_is_never_shown",
    ),
    "every kind has its message": (
        "classify::test_every_kind_has_a_message_that_names_the_provider",
        "classify::test_the_message_of_what_is_tried_again_holds_no_status_and_no_advice",
    ),
}

PROMPT: Final[Rules] = {
    "the input of a call is an object": (
        "prompt::test_the_input_of_a_call_is_an_object_whatever_was_stored",
    ),
    "files by id, inline data, and never both": (
        "prompt_files::test_a_file_is_sent_as_it_is_stored",
        "prompt_files::test_data_in_the_message_itself_is_decoded",
        "prompt_files::test_a_stored_file_counts_and_not_data_beside_its_id",
        "prompt::test_files_of_the_user_are_resolved_in_one_go",
    ),
    "the provider's calls get no result from us; its lost results go": (
        "prompt_repair::test_the_providers_own_call_gets_no_result_from_us",
        "prompt_repair::test_a_providers_result_without_its_call_is_left_out",
        "prompt_repair::test_a_providers_result_that_was_stored_apart_returns_to_its_call",
    ),
    "content of an unknown version is an error": (
        "prompt::test_content_of_an_unknown_version_is_not_guessed_at",
    ),
    "what a vendor attached comes back": (
        "prompt::test_what_a_vendor_attached_comes_back_to_the_letter",
    ),
    "NUL: kept in history, not sent": (
        "prompt::test_a_model_gets_no_nul_and_no_half_of_a_character",
        "heal::test_a_model_gets_no_nul_in_text_arguments_or_keys",
        "assemble::test_what_was_assembled_can_be_stored_and_read_back",
    ),
    "blank parts and messages of nothing else go": (
        "prompt::test_blank_parts_are_left_out_and_so_are_messages_of_nothing_else",
    ),
    "a paste is text, by name and type, and bounded": (
        "prompt_files::test_a_paste_is_known_by_its_name_and_its_type",
        "prompt_files::test_a_paste_is_sent_as_text",
        "prompt_files::test_a_paste_is_cut_at_its_limit_between_characters",
        "prompt_files::test_a_paste_at_its_limit_is_whole",
    ),
    "media with and without text, and what cannot be read": (
        "prompt::test_media_are_sent_with_their_text",
        "prompt::test_media_that_cannot_be_read_leave_their_text",
        "prompt::test_an_error_counts_before_media",
    ),
    "sealed reasoning without a word is sent": (
        "prompt::test_reasoning_is_told_with_what_the_vendor_attached_even_without_a_word",
    ),
    "searches between texts keep their places": (
        "prompt::test_a_search_of_the_provider_is_told_back_in_its_place_and_to_the_letter",
    ),
    "files that are gone, empty, mixed, or of an answer": (
        "prompt_files::test_a_file_that_is_gone_leaves_a_word_behind",
        "prompt_files::test_an_empty_file_is_not_sent",
        "prompt::test_a_message_may_mix_files_that_are_there_gone_and_empty",
        "prompt::test_files_of_an_answer_are_not_told_again",
    ),
    "results beside searches, answers in a row, rows between call and result": (
        "prompt_repair::test_results_of_both_kinds_may_stand_side_by_side",
        "prompt_repair::test_answers_in_a_row_become_one",
        "prompt_repair::test_results_are_told_right_after_their_call_whatever_stands_between",
        "prompt_repair::test_a_result_whose_call_is_lost_gets_one",
    ),
    "an error of a tool's own form is kept if the tool says so": (
        "tool_output::test_an_output_is_stored_as_json",
    ),
    "text that cannot be read is mended on the way in and on the way out": (
        "heal::test_raw_json_is_made_valid_utf8",
        "heal::test_halves_of_a_character_are_joined_or_replaced",
        "assemble::test_bytes_of_a_provider_that_are_not_text_are_mended",
    ),
    "text files that the model would not be shown are told in words": (
        "prompt_files::test_text_that_the_target_would_not_show_is_sent_as_words_in_full",
        "prompt_files::test_text_that_the_target_shows_stays_a_file",
        "prompt_files::test_other_files_are_never_turned_into_words_here",
        "prompt_files::test_a_target_that_is_not_known_gets_files",
    ),
    "instructions are cleaned of what nobody sees": (
        "prompt_text::test_the_list_of_invisible_characters_is_the_one_that_was_agreed_on",
        "prompt_text::test_a_character_that_nobody_sees_is_taken_out",
        "prompt_text::test_what_writing_needs_is_kept",
        "prompt_text::test_lines_are_made_even",
    ),
    "instructions come in one order": (
        "prompt::test_instructions_follow_the_chats_own_system_messages_in_their_order",
        "prompt_text::test_instructions_come_in_one_order",
    ),
    "rows are chosen by the boundary and told by id": (
        "prompt::test_a_summary_stands_for_all_before_it_and_its_own_call_is_not_told",
        "prompt::test_rows_are_told_by_id_and_not_as_they_happen_to_come",
        "prompt::test_instruction_files_outlive_a_summary_and_the_newest_count",
    ),
    "any history makes a conversation that providers take": (
        "prompt_property::test_a_prompt_of_any_history_is_well_formed",
        "prompt_property::test_the_prompt_of_a_chat_in_the_middle_of_any_life_is_well_formed",
    ),
    "a prompt only grows at its end": (
        "prompt_repair::test_a_prompt_grows_at_its_end_and_stays_the_same_before_it",
    ),
}

COMMIT: Final[Rules] = {
    "text and reasoning in one row, with usage and time": (
        "step_rows::test_an_answer_becomes_one_message_with_all_that_is_known_of_the_call",
        "assemble::test_reasoning_says_when_it_began_and_when_it_was_done",
    ),
    "calls and results say whose tool they are of": (
        "step_rows::test_calls_say_whose_tool_they_name",
        "tool_output::test_a_result_is_a_message_of_the_tool",
    ),
    "steps are counted without summaries; stops and ends are found": (
        "decide::test_a_turn_has_at_most_so_many_steps",
        "decide::test_a_tool_that_ends_the_turn_ends_it",
        "decide::test_an_answer_without_calls_completes_the_turn",
        "decide::test_something_only_the_model_sees_begins_no_turn",
    ),
    "pieces of an answer become rows": (
        "partial::test_pieces_of_text_and_reasoning_are_joined",
        "partial::test_pieces_of_a_call_are_joined_where_the_first_was_shown",
        "partial::test_a_whole_call_counts_whatever_pieces_come_before_or_after",
        "partial::test_a_preview_of_an_output_answers_nothing",
        "partial::test_a_result_without_a_value_answers_nothing",
        "partial::test_a_result_answers_its_call_once",
        "partial::test_results_answer_calls_that_were_open_before",
    ),
    "every call is booked": (
        "step_rows::test_every_call_is_booked_with_the_prices_of_the_day",
        "step_rows::test_a_call_that_failed_is_booked_too",
    ),
}

GUARD: Final[Rules] = {
    "each flaw is found, named and mended": (
        "provider_tools::test_what_is_not_a_good_pair_is_taken_out_and_its_words_are_kept",
        "provider_tools::test_a_good_pair_is_kept",
        "provider_tools::test_violations_say_where_they_are",
    ),
    "an id that is also ours, and places outside an answer": (
        "provider_tools::test_an_id_that_is_ours_and_the_providers_is_ours",
        "provider_tools::test_outside_an_answer_nothing_is_left",
        "provider_tools::test_calls_of_ours_are_not_judged",
    ),
    "answers that come to stand side by side are joined": (
        "provider_tools::test_answers_that_come_to_stand_side_by_side_are_joined",
    ),
    "other providers are left alone": (
        "provider_tools::test_only_a_strict_providers_prompt_is_judged",
    ),
    "signed answers": (
        "prompt_repair::test_a_signed_answer_is_not_joined_with_another",
        "provider_tools::test_the_newest_signed_answer_stays_but_for_calls_that_were_never_answered",
        "provider_tools::test_an_older_signed_answer_is_mended_like_any_other",
        "provider_tools::test_a_fresh_answer_with_signed_thoughts_is_stored_as_it_came",
    ),
    "rather no search than a refused request": (
        "provider_tools::test_rather_no_search_than_a_request_that_is_refused",
    ),
    "every result can be put in words": (
        "provider_tools::test_every_kind_of_result_can_be_put_in_words",
    ),
    "fresh answers are judged, too": (
        "provider_tools::test_a_fresh_answer_is_judged_before_it_is_stored",
    ),
    "another provider's answers, by instance": (
        "foreign::test_an_answer_of_the_same_provider_is_told_as_it_is",
        "foreign::test_of_an_answer_from_elsewhere_only_what_means_something_here_is_told",
        "foreign::test_an_answer_from_elsewhere_with_nothing_left_is_gone",
        "foreign::test_instances_of_one_vendor_are_strangers_to_each_other",
        "foreign::test_our_own_calls_stay_without_what_was_attached_to_them",
    ),
}

QUICK: Final[Rules] = {
    "turns, window, gap and cuts of an excerpt": (
        "titles::test_a_turn_is_what_was_asked_and_what_was_answered_in_the_end",
        "titles::test_an_excerpt_has_the_first_turn_and_the_last_few_and_shows_the_gap",
        "titles::test_an_excerpt_is_bounded_in_each_message_and_in_all",
    ),
    "what is asked for, of whom, for how long": (
        "titles::test_the_request_asks_for_a_short_name_and_not_for_an_answer",
        "titles::test_small_models_are_asked_first_in_their_order_and_the_chats_own_last",
        "titles::test_a_model_that_was_chosen_for_titles_is_asked_alone",
    ),
    "a title is cleaned or refused": ("titles::test_a_title_is_read_and_cleaned_or_refused",),
    "the first name of a chat": (
        "titles::test_a_chat_is_first_named_after_its_first_words",
        "titles::test_a_title_is_made_of_what_was_typed_or_pasted",
    ),
    "who wants a title": (
        "titles::test_a_chat_with_one_message_and_no_name_of_its_own_wants_a_title",
        "titles::test_any_other_chat_does_not",
    ),
    "a temperature is dropped only if it was refused": (
        "titles::test_a_model_that_refuses_a_temperature_is_asked_without",
    ),
    "labels, and what is shown without one": (
        "labels::test_a_label_is_a_few_words_about_no_one",
        "labels::test_a_label_speaks_of_a_turn_that_ended_well_and_each_other_status_for_itself",
        "labels::test_a_notice_of_an_error_says_which",
        "labels::test_a_summary_is_due_every_third_turn",
    ),
}

PROVIDERS: Final[Rules] = {
    "Anthropic: users and results in a row are one message, nothing empty is sent": (
        "providers/anthropic_encode::test_users_and_results_in_a_row_are_one_message_with_the_results_first",
        "providers/anthropic_encode::test_messages_without_anything_to_see_are_dropped_and_their_neighbours_joined",
        "providers/anthropic_encode::test_systems_that_lead_stand_apart_and_later_ones_are_left_out",
    ),
    "Anthropic: thoughts go back signed or not at all, calls with an object": (
        "providers/anthropic_encode::test_thoughts_without_a_signature_or_of_others_stay_here",
        "providers/anthropic_encode::test_thoughts_go_back_exactly_as_they_came",
        "providers/anthropic_encode::test_a_call_keeps_its_place_even_if_its_input_is_no_object",
    ),
    "Anthropic: counts told in instalments are neither lost nor added up": (
        "providers/anthropic_decode::test_tokens_told_in_instalments_are_neither_lost_nor_counted_twice",
        "providers/anthropic_decode::test_a_later_telling_of_nothing_does_not_erase_what_was_told",
        "providers/anthropic_decode::test_counts_that_are_told_again_are_not_added_up",
    ),
    "Anthropic: why it stopped and that it stopped": (
        "providers/anthropic_decode::test_the_reason_for_stopping_is_told",
        "providers/anthropic_decode::test_a_filter_on_the_way_counts_as_one",
        "providers/anthropic_decode::test_both_the_reason_and_the_end_are_needed",
    ),
    "Anthropic: documents with a title, betas, no temperature for thinkers": (
        "providers/anthropic_encode::test_files_take_the_form_the_api_has_for_them",
        "providers/anthropic_encode::test_a_million_tokens_of_context_must_be_asked_for",
        "providers/anthropic_encode::test_a_model_that_thinks_takes_no_temperature",
    ),
    "Bedrock: signed, framed, its own words for failures, the machine's keys": (
        "providers/bedrock::test_requests_are_signed_as_aws_signs_them",
        "providers/bedrock::test_every_damaged_bit_is_noticed",
        "providers/bedrock::test_an_exception_in_the_middle_is_told_under_its_name",
        "providers/bedrock::test_the_machines_own_credentials_are_used",
        "providers/bedrock::test_a_region_is_needed",
    ),
    "Responses: developers, sealed reasoning, everything sent each time": (
        "providers/openai_responses_encode::test_a_model_that_reasons_hears_a_developer_and_is_not_told_a_temperature",
        "providers/openai_responses_encode::test_items_that_lost_their_reasoning_lose_their_ids_and_searches_go",
        "providers/openai_responses_encode::test_nothing_is_left_to_the_apis_memory",
        "providers/openai_client::test_seals_of_another_account_are_not_sent",
    ),
    "Responses: a call is what the answer ends with, failures are told apart": (
        "providers/openai_responses_decode::test_ends_are_told_apart",
        "providers/openai_responses_decode::test_failures_are_facts_that_can_be_judged",
        "providers/openai_responses_decode::test_errors_come_in_many_forms",
        "providers/openai_responses_decode::test_a_stream_that_stops_before_its_last_event_is_incomplete",
    ),
    "Completions: what models that reason are not told": (
        "providers/openai_chat_encode::test_a_model_that_reasons_is_told_a_limit_by_another_name_and_no_temperature",
        "providers/openai_chat_encode::test_texts_are_joined_and_instructions_are_one",
    ),
    "Completions: calls without ids, numbers or arguments; counts anywhere": (
        "providers/openai_chat_decode::test_calls_without_ids_get_some_that_no_other_step_has",
        "providers/openai_chat_decode::test_calls_of_one_number_without_ids_are_told_apart_by_their_names",
        "providers/openai_chat_decode::test_a_call_without_arguments_has_an_empty_object_of_them",
        "providers/openai_chat_decode::test_the_last_chunk_with_counts_is_kept_though_others_follow",
        "providers/openai_chat_decode::test_counts_within_a_choice_are_counted",
    ),
    "Completions: errors in the middle, and one demanded tool": (
        "providers/openai_chat_decode::test_errors_come_in_many_forms",
        "providers/openai_chat_encode::test_a_tool_may_be_demanded_even_of_servers_that_know_no_names",
    ),
    "Google: all leading instructions, signatures in their places, answers without an end": (
        "providers/gemini_encode::test_all_leading_system_messages_are_joined",
        "providers/gemini_encode::test_signatures_go_back_byte_for_byte_where_they_came",
        "providers/gemini_decode::test_calls_are_an_answer_even_without_a_reason_to_finish",
        "providers/gemini_client::test_an_answer_without_an_end_is_raised",
        "providers/gemini_decode::test_words_before_a_call_that_was_garbled_are_not_taken_for_an_answer",
    ),
    "Google behind a compatible endpoint": (
        "providers/openai_chat_encode::test_google_is_told_how_to_think_in_its_own_words",
        "providers/openai_chat_encode::test_calls_of_the_current_turn_that_nobody_signed_get_googles_word_for_that",
        "providers/openai_chat_decode::test_only_google_has_thoughts_in_its_text",
    ),
    "efforts are fitted to the model; what is configured in so many words wins": (
        "effort::test_a_wish_is_kept_within_what_is_configured",
        "effort::test_a_model_without_a_range_is_not_asked_to_think",
        "providers/anthropic_encode::test_a_model_is_asked_to_think_in_the_way_it_understands",
        "providers/openai_models::test_an_effort_is_fitted_to_what_a_model_takes",
        "providers/gemini_config::test_an_effort_becomes_what_the_model_understands",
        "providers/gemini_config::test_what_is_configured_wins_over_an_effort",
    ),
    "a model goes by the name it is configured under, on a wire that is chosen once": (
        "providers/anthropic_encode::test_the_model_is_named_as_it_is_configured",
        "providers/openai_client::test_the_wire_is_chosen_once",
        "providers/openai_models::test_what_is_configured_counts_more_than_a_name",
    ),
    "a missing or impossible key is told before anything is sent": (
        "providers/registry::test_a_missing_key_is_told_with_what_to_set",
        "providers/registry::test_a_key_that_cannot_be_one_is_told_but_not_shown",
        "providers/gemini_client::test_without_a_key_nothing_is_built",
    ),
    "headers are merged, and keys stay in them": (
        "providers/registry::test_headers_are_merged_whatever_their_case",
        "providers/http::test_a_key_that_a_server_repeats_is_taken_out",
        "providers/http::test_the_key_in_a_header_is_taken_out_without_the_word_before_it",
        "providers/http::test_a_redirect_is_not_followed",
    ),
    "cache marks on the last system message and the last two messages": (
        "providers/anthropic_encode::test_the_last_system_block_and_the_last_two_messages_are_kept_for_next_time",
        "providers/anthropic_encode::test_the_mark_never_falls_on_a_thought",
    ),
    "the category of a refusal goes into its explanation": (
        "providers/anthropic_decode::test_a_refusal_is_explained",
        "providers/anthropic_decode::test_a_refusal_without_words_is_explained_by_its_category",
    ),
    "files are shown or spoken of": (
        "providers/files::test_a_file_is_shown_or_spoken_of",
        "providers/files::test_what_is_too_large_is_spoken_of",
    ),
    "schemas and names are put right in one place": (
        "providers/schema::test_whatever_comes_is_a_schema_of_an_object",
        "providers/schema::test_what_vendors_refuse_is_put_right_at_any_depth",
        "providers/schema::test_a_name_that_does_not_fit_is_changed_and_found_again",
    ),
}

COST: Final[Rules] = {
    "every category, free and unpriced": ("cost::test_tokens_times_prices_make_micros",),
    "rounded up once, exactly": (
        "cost::test_the_sum_is_rounded_up_once",
        "cost::test_decimals_are_exact_where_floats_are_not",
    ),
    "reasoning is not paid twice": ("cost::test_reasoning_is_in_the_output_and_not_paid_twice",),
    "what is no price is none": ("cost::test_what_is_no_price_leaves_the_call_unpriced",),
}

CATALOGUE: Final[Mapping[str, Rules]] = {
    "loop": LOOP,
    "context limit": CONTEXT_LIMIT,
    "compaction": COMPACTION,
    "retry": RETRY,
    "errors": ERRORS,
    "prompt": PROMPT,
    "commit": COMMIT,
    "guard": GUARD,
    "quick generation": QUICK,
    "providers": PROVIDERS,
    "cost": COST,
}

ELSEWHERE: Final[Mapping[str, str]] = {
    "only active tools are sent": "engine",
    "a failed commit ends the step": "engine",
    "an interrupt during tools keeps what was said and done": "engine",
    "a shutdown during a tool is not an interrupt": "engine",
    "a viewer that cannot be told releases the attempt all the same": "engine",
    "tools are told where to publish previews": "engine",
    "retry state is in the row while waiting, and cleared by the next attempt": "engine",
    "a cancellation while nobody stopped us is a cut connection": "engine",
    "an override for summaries or titles that cannot be used": "engine",
    "a summary's parts are shown before and after": "engine",
    "a title never touches history, and not the time of the last change": "engine",
    "metrics of retries, summaries and tool errors": "engine",
    "queued content comes back as it was sent": "store",
}
