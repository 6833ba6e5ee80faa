import re

import pytest

from tasks.report import artifact_key


@pytest.mark.parametrize("run", ["quickstart", "Run_7.b", "a--b"])
def test_artifact_key_is_one_that_prefect_takes(run: str) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", artifact_key(run, "reward-curve"))


def test_artifact_key_names_run_and_kind() -> None:
    assert artifact_key("Run_7.b", "iteration") == "run-7-b-iteration"
