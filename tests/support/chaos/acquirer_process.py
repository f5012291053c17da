"""A process that acquires chats: it reads a number of slots per line and writes the acquired ids.

Run as `python -m tests.support.chaos.acquirer_process <dsn> <worker id>`. It exits at the end of
input.
"""

import asyncio
import sys
from uuid import UUID

import msgspec

from chatd.domain.ids import WorkerId
from chatd.store.chat.workers import acquire
from chatd.store.database.conn import ConnectConfig, connect


async def main(dsn: str, worker_id: WorkerId) -> None:
    session = await connect(ConnectConfig(dsn=dsn, application_name="acquirer"))
    try:
        while (line := await asyncio.to_thread(sys.stdin.readline)).strip():
            taken = await acquire(session, worker_id, roots=int(line), children=0)
            ids = [row.id for row in taken]
            sys.stdout.write(msgspec.json.encode(ids).decode() + "\n")
            sys.stdout.flush()
    finally:
        await session.close(timeout_s=30)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], WorkerId(UUID(sys.argv[2]))))
