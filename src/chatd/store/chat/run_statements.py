"""Fragments of statements that write the record of attempts, in the statement of the change itself.

Each joins `changed c`, the updated rows of chats, so that a conflict records nothing. The end of an
attempt is written by the statement that takes the chat from its worker; a row without an end is the
attempt in progress.
"""

from typing import Final, LiteralString

_KEPT: Final[LiteralString] = "200"
RUNS_KEPT_PER_CHAT: Final = int(_KEPT)
"""Older rows are deleted one by one as new ones are written."""


def take_over(worker: LiteralString) -> LiteralString:
    """The takeover by this worker, from the owner's death in `chats c`."""
    return f"""c.lost || jsonb_build_object('worker_id', {worker},
            'version', c.snapshot_version + 1, 'after_ms', CASE WHEN c.lost ? 'seen_at_us' THEN
            greatest(0, (extract(epoch FROM now()) * 1000
                - (c.lost->>'seen_at_us')::bigint / 1000)::bigint) END)"""


# The epoch and the attempt are those after the change; the takeover only if this change is it.
_BEGUN: Final[LiteralString] = """
    INSERT INTO chat_runs (chat_id, run_no, turn_no, turn_message_id, epoch, attempt, worker_id,
        first_message_id, takeover)
    SELECT c.id, c.run_no, c.turn_no, c.turn_message_id, c.epoch, c.attempt, c.worker_id,
        c.next_message_id,
        CASE WHEN (c.takeover->>'version')::bigint = c.snapshot_version THEN c.takeover END
    FROM changed c"""

BEGIN_RUNS: Final[LiteralString] = f"""
begun AS ({_BEGUN}),
trimmed AS (
    DELETE FROM chat_runs r USING changed c
    WHERE r.chat_id = c.id AND r.run_no = c.run_no - {_KEPT})"""
"""For all chats in `changed`."""

BEGIN_RUN: Final[LiteralString] = f"""
begun AS ({_BEGUN} WHERE :run_begins::boolean),
trimmed AS (
    DELETE FROM chat_runs r USING changed c
    WHERE :run_begins AND r.chat_id = :chat_id AND r.run_no = c.run_no - {_KEPT})"""
"""For the one chat of a change, which may begin none."""

END_RUN: Final[LiteralString] = """
ended AS (
    UPDATE chat_runs r SET ended_at = now(), outcome = :run_outcome::text,
        end_message_id = :run_end_message_id::bigint, detail = :run_detail::json
    FROM changed c
    WHERE :run_outcome::text IS NOT NULL AND r.chat_id = :chat_id
      AND r.run_no = c.run_no - :run_begins::boolean::int AND r.ended_at IS NULL)"""

RELEASE_RUNS: Final[LiteralString] = """
ended AS (
    UPDATE chat_runs r SET ended_at = now(), outcome = 'released',
        end_message_id = c.next_message_id
    FROM changed c WHERE r.chat_id = c.id AND r.run_no = c.run_no AND r.ended_at IS NULL)"""
