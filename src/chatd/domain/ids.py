"""Types of identifiers.

Message and queue ids are counted per chat in the chat's row, so that ids increase in the order of
appending on every replica.
"""

from typing import NewType
from uuid import UUID

ChatId = NewType("ChatId", UUID)
UserId = NewType("UserId", UUID)
GroupId = NewType("GroupId", UUID)
CredentialId = NewType("CredentialId", UUID)
WorkerId = NewType("WorkerId", UUID)
ModelConfigId = NewType("ModelConfigId", UUID)
WorkspaceId = NewType("WorkspaceId", UUID)
FileId = NewType("FileId", UUID)
ProjectId = NewType("ProjectId", UUID)
McpServerId = NewType("McpServerId", UUID)
RequestId = NewType("RequestId", UUID)

MessageId = NewType("MessageId", int)
QueueId = NewType("QueueId", int)

ToolCallId = NewType("ToolCallId", str)

ChangeId = NewType("ChangeId", int)
"""Names one operation across its retries: a retry that finds it in the row was already applied."""
