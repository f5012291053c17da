"""Counting the tokens of one call, which the API tells in instalments.

The beginning tells what was read; later tellings are totals so far, and may
leave out what they do not change. So each number is the greatest that was
told, and nothing is ever added up.
"""

from chatd.domain.chat.messages import TokenUsage
from chatd.providers.anthropic.wire import WireUsage


class UsageCount:
    def __init__(self) -> None:
        self._input = 0
        self._output = 0
        self._reasoning = 0
        self._written = 0
        self._read = 0
        self._context_at_start = 0
        self._last_context = 0

    def begin(self, usage: WireUsage | None) -> None:
        self.update(usage)
        self._context_at_start = self._input + self._written + self._read

    def update(self, usage: WireUsage | None) -> None:
        if usage is None:
            return
        self._input = max(self._input, usage.input_tokens or 0)
        self._output = max(self._output, usage.output_tokens or 0)
        self._written = max(self._written, usage.cache_creation_input_tokens or 0)
        self._read = max(self._read, usage.cache_read_input_tokens or 0)
        if usage.output_tokens_details is not None:
            thinking = usage.output_tokens_details.thinking_tokens
            self._reasoning = max(self._reasoning, thinking or 0)
        for asked in usage.iterations or ():
            if asked.type == "message":
                self._last_context = (
                    (asked.input_tokens or 0)
                    + (asked.cache_creation_input_tokens or 0)
                    + (asked.cache_read_input_tokens or 0)
                )

    def total(self) -> TokenUsage:
        return TokenUsage(
            input_tokens=self._input,
            output_tokens=self._output,
            total_tokens=self._input + self._output + self._written + self._read,
            reasoning_tokens=self._reasoning,
            cache_creation_tokens=self._written,
            cache_read_tokens=self._read,
            context_tokens=self._context(),
        )

    def _context(self) -> int | None:
        """Only if it is not simply what was read: the provider's own tools ask the model again
        and again, and each time all of it is read."""
        paid = self._input + self._written + self._read
        if self._last_context:
            return self._last_context if self._last_context != paid else None
        return self._context_at_start if 0 < self._context_at_start < paid else None
