"""Names for the identifiers that travel between rooms.

Message and queue ids are counted per chat, from the chat's own row, so that
their order is the order of appending whatever replica wrote them.
"""

from typing import NewType
from uuid import UUID

ChatId = NewType("ChatId", UUID)
UserId = NewType("UserId", UUID)
WorkerId = NewType("WorkerId", UUID)
ModelConfigId = NewType("ModelConfigId", UUID)
WorkspaceId = NewType("WorkspaceId", UUID)
RequestId = NewType("RequestId", UUID)

MessageId = NewType("MessageId", int)
QueueId = NewType("QueueId", int)

ToolCallId = NewType("ToolCallId", str)

ChangeId = NewType("ChangeId", int)
"""Names one operation through all its tries; a retry finds it in the row and knows it landed."""
