import pytest
from pydantic import ValidationError

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError, StoreError
from lora_rl.store import check_name
from lora_rl.store.names import check_key

GOOD = ["a", "night-1", "Qwen3_8B.v2", "-dash", "_x", "a" * 128]
BAD = ["", ".", "..", "../x", "a/b", "/a", ".hidden", "a b", "a\n", "ä", "a\\b", "a" * 129, "a%2f", "a?versionId=1"]


@pytest.mark.parametrize("name", GOOD)
def test_good_name_is_returned(name: str):
    assert check_name("run name", name) == name
    assert AdapterConfig(name=name).name == name


@pytest.mark.parametrize("name", BAD)
def test_name_that_could_leave_its_folder_is_refused_as_in_the_config(name: str):
    with pytest.raises(ConfigError, match=r"^run name: .*; choose another name$"):
        check_name("run name", name)
    with pytest.raises(ValidationError):
        AdapterConfig(name=name)


@pytest.mark.parametrize("key", ["a", "runs/a/it00001/rollout.json", "cas/x/0f"])
def test_good_key_is_returned(key: str):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "/etc/passwd", "..", "runs/../../x", "runs//a", "runs/", "runs/.staging/x", "a\n"])
def test_key_that_could_leave_the_root_is_refused(key: str):
    with pytest.raises(StoreError, match="not a relative path"):
        check_key(key)
