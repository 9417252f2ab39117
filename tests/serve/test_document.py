"""Whatever the OpenAPI document allows, or forbids, is answered as it says; nothing is a 5xx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.serve.conftest import KEY, Caller

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis needs Python 3.11")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

ASKING = [(path, "POST") for path in ("/predict", "/recommend", "/explain", "/similar", "/seen")]
OTHERS = [
    *(("/reload", "POST"), ("/model", "GET"), ("/metrics", "GET")),
    *(("/healthz", "GET"), ("/readyz", "GET")),
]


@pytest.fixture(scope="module")
def document(run: Path) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", Caller(run, key=KEY).app)


def check_answers(operation: Any, mode: Any, examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        # No schema says that two lists are of equal length, or which columns `where` may name.
        case.call_and_validate(
            headers={"Authorization": f"Bearer {KEY}"},
            excluded_checks=[checks.positive_data_acceptance],
        )

    check()


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("path", "method"), ASKING)
def test_every_answer_to_a_body_is_as_documented(
    document: Any, path: str, method: str, mode: Any
) -> None:
    check_answers(document[path][method], mode, 30)


@pytest.mark.parametrize(("path", "method"), OTHERS)
def test_every_answer_without_a_body_is_as_documented(
    document: Any, path: str, method: str
) -> None:
    check_answers(document[path][method], schemathesis.GenerationMode.POSITIVE, 2)
