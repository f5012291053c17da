"""What a chat waits for from a person: approvals, questions, proposed plans; and the answers."""

from chatd.terminal.answers.panel import AnswerPanel

__all__ = ["AnswerPanel"]
