"""schemathesis checks that the API conforms to its OpenAPI document and never fails."""

from pathlib import Path

import pytest

from tests.api.schemathesis_run import Effort, ask_everything, busy_workspace_api
from tests.support.api.request_generator import operations


@pytest.mark.promise("P15")
@pytest.mark.timeout(240)
async def test_the_api_conforms_to_its_openapi_document(dsn: str, tmp_path: Path) -> None:
    """`make fuzz` runs more cases. This takes about four seconds on an idle machine."""
    async with busy_workspace_api(dsn) as api:
        effort = Effort(cases=2, phases="fuzzing", seed=3, arguments=("--no-shrink",))
        code, said = await ask_everything(api, effort, tmp_path)
        assert code == 0, said
        document = (await api.server.open_page("/api/v1/openapi.json")).json
        assert f"Tested: {len(operations(document))}\n" in said, said
