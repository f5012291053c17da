"""Random requests: no reply is a server error, every error has the usual body, and the OpenAPI
document lists every status. schemathesis checks that the API conforms to its OpenAPI document and
never fails.
"""

from collections import Counter
from pathlib import Path

import pytest

from chatd.domain.chat.states import State
from tests.api.fuzz import ADMINISTRATION, Effort, ask_everything, busy_workspace_api
from tests.support.api.request_generator import CASES, SEED, RequestGenerator, operations
from tests.support.api.server import CLEVER, FAST, ApiServer
from tests.support.seeds import Seed
from tests.support.store import chat_id, insert_seed

STATES = (State.W, State.P0, State.R1, State.I0, State.A0, State.E1, State.XW0)


@pytest.mark.promise("P15")
async def test_no_request_makes_the_server_fail(server: ApiServer) -> None:
    """FUZZ_CASES=2000 FUZZ_SEED=7 runs more and other cases."""
    for number, state in enumerate(STATES, 1):
        await insert_seed(server.replica.pool, Seed(state=state, chat_id=chat_id(number)))
    known = [chat_id(number) for number in range(len(STATES) + 2)]
    document = (await server.open_page("/api/v1/openapi.json")).json
    requests = RequestGenerator(document, [*known, FAST.id, CLEVER.id], SEED)
    seen: Counter[int] = Counter()
    for operation in operations(document):
        for _ in range(CASES):
            asked = requests.of(operation)
            path = asked.path.removeprefix("/api/v1")
            answer = await server.ask(asked.method, path, asked.body, headers=asked.headers)
            what = (asked, answer.status, answer.content[:500])
            assert answer.status in operation.statuses, what
            if answer.status >= 400:
                assert answer.code[0] < 500, what
            seen[answer.status // 100] += 1
    assert min(seen[2], seen[4]) > 50, "nearly all was right, or nearly all was wrong"


async def test_the_fuzzer_covers_every_route(server: ApiServer) -> None:
    document = (await server.open_page("/api/v1/openapi.json")).json
    found = {(one.method, one.path) for one in operations(document)}
    assert {
        ("GET", "/api/v1/models"),
        ("GET", "/api/v1/models/{model_id}"),
        ("GET", "/api/v1/providers"),
        ("POST", "/api/v1/chats/{chat_id}/tool-results"),
    } <= found
    assert len(found) >= 18


@pytest.mark.promise("P15")
@pytest.mark.timeout(240)
async def test_the_api_conforms_to_its_openapi_document(dsn: str, tmp_path: Path) -> None:
    """`make fuzz` runs more cases. This takes about four seconds on an idle machine."""
    async with busy_workspace_api(dsn) as api:
        effort = Effort(cases=1, phases="fuzzing", seed=3, arguments=("--no-shrink",))
        code, said = await ask_everything(api, effort, tmp_path)
        assert code == 0, said
        document = (await api.server.open_page("/api/v1/openapi.json")).json
        assert f"Tested: {len(operations(document))}\n" in said, said
        code, said = await ask_everything(api, ADMINISTRATION, tmp_path)
        assert code == 0, said
        assert "only 401/403" not in said
