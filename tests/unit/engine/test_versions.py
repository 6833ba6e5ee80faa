import pytest

from lora_rl.engine import Probe
from lora_rl.engine.versions import Version, VersionRegistry
from lora_rl.errors import EngineError
from lora_rl.store.refs import AdapterRef
from tests.builders import make_adapter_ref

PROBE = Probe(prompt_tokens=[1], token_ids=[2], logp=[-1.0], logp_base=[-1.5])


def publish(registry: VersionRegistry, ref: AdapterRef) -> list[str]:
    """Adds `ref` and returns the labels that have to be unloaded for it."""
    registry.add(ref, PROBE, registry.new_id())
    return [version.label for version in unloaded(registry)]


def unloaded(registry: VersionRegistry) -> list[Version]:
    """What is not needed, removed."""
    unneeded = registry.unneeded()
    for version in unneeded:
        registry.remove(version)
    return unneeded


def labels(registry: VersionRegistry) -> list[str]:
    return [version.label for version in registry.serving()]


def test_the_oldest_version_leaves_when_the_window_is_full():
    registry = VersionRegistry(slots=1, resident_versions=2)
    assert publish(registry, make_adapter_ref("a", 1)) == []
    assert publish(registry, make_adapter_ref("a", 2)) == []
    assert publish(registry, make_adapter_ref("a", 3)) == ["a@1"]
    assert labels(registry) == ["a@2", "a@3"]


def test_a_version_in_use_stays_loaded_until_its_last_request_ends():
    registry = VersionRegistry(slots=1, resident_versions=2)
    publish(registry, make_adapter_ref("a", 1))
    lease, second = registry.acquire("a@1"), registry.acquire("a@1")
    publish(registry, make_adapter_ref("a", 2))
    assert publish(registry, make_adapter_ref("a", 3)) == []
    registry.release(lease)
    assert unloaded(registry) == []
    registry.release(second)
    assert unloaded(registry) == [lease]


def test_a_retired_version_takes_no_new_requests():
    registry = VersionRegistry(slots=1, resident_versions=2)
    publish(registry, make_adapter_ref("a", 1))
    registry.acquire("a@1")
    publish(registry, make_adapter_ref("a", 2))
    publish(registry, make_adapter_ref("a", 3))
    with pytest.raises(EngineError, match=r"a@1: not loaded here \(loaded: a@2, a@3\)"):
        registry.acquire("a@1")


def test_an_empty_engine_names_nothing():
    with pytest.raises(EngineError, match=r"a@1: not loaded here \(loaded: none\)"):
        VersionRegistry(slots=1, resident_versions=2).acquire("a@1")


def test_a_version_published_again_with_other_weights_is_replaced_under_a_fresh_id():
    registry = VersionRegistry(slots=1, resident_versions=2)
    publish(registry, make_adapter_ref("a", 1, weights="old"))
    old = registry.acquire("a@1")
    publish(registry, make_adapter_ref("a", 1, weights="new"))
    new = registry.acquire("a@1")
    assert new.lora_id != old.lora_id
    assert new.ref == make_adapter_ref("a", 1, weights="new")
    assert labels(registry) == ["a@1"]
    registry.release(old)
    assert unloaded(registry) == [old]


def test_other_weights_and_other_config_both_make_another_version():
    registry = VersionRegistry(slots=1, resident_versions=2)
    publish(registry, make_adapter_ref("a", 1))
    version = registry.acquire("a@1")
    assert version.same_files(make_adapter_ref("a", 1))
    assert not version.same_files(make_adapter_ref("a", 1, weights="other"))
    assert not version.same_files(make_adapter_ref("a", 1, config="other"))


def test_ids_are_never_used_twice():
    registry = VersionRegistry(slots=1, resident_versions=2)
    ids = []
    for version in range(1, 20):
        publish(registry, make_adapter_ref("a", version))
        ids.append(registry.acquire(f"a@{version}").lora_id)
    assert len(set(ids)) == len(ids)


def test_the_window_counts_publishes_not_version_numbers():
    registry = VersionRegistry(slots=1, resident_versions=2)
    for version in (30, 31):
        publish(registry, make_adapter_ref("a", version))
    assert publish(registry, make_adapter_ref("a", 0)) == ["a@30"]


def test_a_touched_version_outlives_the_other():
    registry = VersionRegistry(slots=1, resident_versions=2)
    publish(registry, make_adapter_ref("a", 1))
    publish(registry, make_adapter_ref("a", 2))
    registry.touch(registry.serving()[0])
    assert publish(registry, make_adapter_ref("a", 3)) == ["a@2"]


def test_each_adapter_has_its_own_window():
    registry = VersionRegistry(slots=2, resident_versions=2)
    for version in range(1, 5):
        publish(registry, make_adapter_ref("a", version))
        publish(registry, make_adapter_ref("b", version))
    assert labels(registry) == ["a@3", "b@3", "a@4", "b@4"]


def test_an_idle_adapter_makes_way_when_the_slots_are_taken():
    registry = VersionRegistry(slots=2, resident_versions=2)
    for name in ("a", "b"):
        publish(registry, make_adapter_ref(name, 1))
    assert publish(registry, make_adapter_ref("c", 1)) == ["a@1"]


def test_a_busy_adapter_does_not_make_way():
    registry = VersionRegistry(slots=2, resident_versions=2)
    for name in ("a", "b"):
        publish(registry, make_adapter_ref(name, 1))
    registry.acquire("a@1")
    assert publish(registry, make_adapter_ref("c", 1)) == ["b@1"]


def test_never_more_are_loaded_than_the_engine_has_room_for():
    registry = VersionRegistry(slots=1, resident_versions=2)
    for version in (1, 2):
        publish(registry, make_adapter_ref("a", version))
        registry.acquire(f"a@{version}")
    publish(registry, make_adapter_ref("a", 3))
    assert registry.capacity == 3
    assert not registry.has_room
    registry.retire_surplus("a", incoming=1)
    assert unloaded(registry) == []
    assert not registry.has_room


def test_an_idle_version_makes_room_before_the_new_one_is_loaded():
    registry = VersionRegistry(slots=1, resident_versions=2)
    publish(registry, make_adapter_ref("a", 1))
    registry.acquire("a@1")
    for version in (2, 3):
        publish(registry, make_adapter_ref("a", version))
    assert not registry.has_room
    registry.retire_surplus("a", incoming=1)
    assert [version.label for version in unloaded(registry)] == ["a@2"]
    assert registry.has_room
    assert labels(registry) == ["a@3"]


def test_retiring_an_adapter_leaves_the_others():
    registry = VersionRegistry(slots=2, resident_versions=2)
    for name in ("a", "b"):
        publish(registry, make_adapter_ref(name, 1))
    registry.retire("a")
    assert [version.label for version in unloaded(registry)] == ["a@1"]
    assert labels(registry) == ["b@1"]
