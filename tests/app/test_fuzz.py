"""Whatever fits the schema, or just does not, is answered without a server error and leaves nothing."""

from __future__ import annotations

import pytest
import schemathesis
from schemathesis import GenerationMode

from tests.app.api import Api
from tests.fuzzing import CASES, fuzz


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_nothing_makes_a_server_error(api: Api, method: str, path: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", api.app)

    def check() -> None:
        assert api.graph.live == set()

    fuzz(schema, method, path, mode, 100, check)


def test_every_operation_is_fuzzed(api: Api) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", api.app)
    found = {(result.ok().method.upper(), result.ok().path) for result in schema.get_all_operations()}
    assert found == {(method, path) for method, path, _ in CASES}
