import asyncio
import os
import shutil
import struct
from pathlib import Path
from urllib.parse import urlparse

import pytest

from lora_rl.config import StoreConfig
from lora_rl.data.types import FinishReason
from lora_rl.engine import PublishOutcome
from lora_rl.engine.actor import EngineActor
from lora_rl.errors import DataError, DigestMismatch, EngineError
from lora_rl.store import AdapterRef, open_store
from lora_rl.store.handover import CONFIG, WEIGHTS, announce, ring_directory, shared_folder
from lora_rl.store.local_objects import LocalObjects
from tests.integration.engine.batches import answers, contents, loaded_ids, make_requests, until_decoding
from tests.peft_adapters import PeftExporter
from tests.tolerances import PARITY

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

COUNTS = (32, 128, 512)
"""Sizes of a batch beside which something is published: where one ends too soon to show anything, the next is tried."""


async def test_the_engine_agrees_with_the_trainer_on_the_probe(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    reply = await engine.publish(store=store, adapter=exporter.export("agree", 1))
    assert reply.outcome is PublishOutcome.LOADED
    assert reply.probe_error < PARITY
    assert reply.probe_effect > 0.1
    assert set(reply.seconds) == {"transfer", "load", "first_token", "probe"}


async def test_an_adapter_with_b_zero_changes_nothing_and_one_with_b_changes_the_log_probabilities(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    assert (await engine.publish(store=store, adapter=exporter.export("b", 0, scale=0.0))).probe_effect == 0
    await engine.publish(store=store, adapter=exporter.export("b", 1))
    without, with_b = await answers(engine, "b@0"), await answers(engine, "b@1")
    assert all(a.logp[0] != b.logp[0] for a, b in zip(without, with_b, strict=True))


async def test_a_version_that_is_not_loaded_is_refused_with_the_ones_that_are(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    await engine.publish(store=store, adapter=exporter.export("known", 1))
    with pytest.raises(EngineError, match=r"known@2: not loaded here \(loaded: .*known@1"):
        await answers(engine, "known@2")


async def test_a_reload_under_the_same_name_answers_as_the_new_weights_do_when_cold(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    await engine.publish(store=store, adapter=exporter.export("same", 1, seed=1))
    old = await answers(engine, "same@1")
    reply = await engine.publish(store=store, adapter=exporter.export("same", 1, seed=2))
    assert reply.outcome is PublishOutcome.LOADED
    reloaded = await answers(engine, "same@1")
    await engine.publish(store=store, adapter=exporter.export("cold", 1, seed=2))
    assert contents(reloaded) == contents(await answers(engine, "cold@1"))
    assert all(a.tokens != b.tokens for a, b in zip(reloaded, old, strict=True))
    assert {answer.adapter_digest for answer in reloaded} == {reply.digest}
    assert reply.resident.count("same@1") == 1


async def test_another_alpha_under_the_same_weights_is_a_reload_too(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    await engine.publish(store=store, adapter=exporter.export("alpha", 1))
    doubled = exporter.export("alpha", 1, edit_config=lambda config: config | {"lora_alpha": 2 * config["lora_alpha"]})
    with pytest.raises(EngineError, match=r"alpha@1: probe disagrees"):
        await engine.publish(store=store, adapter=doubled)


async def test_publishing_what_is_loaded_reads_nothing(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter, monkeypatch: pytest.MonkeyPatch
):
    adapter = exporter.export("twice", 1)
    await engine.publish(store=store, adapter=adapter)
    reads = count_reads(monkeypatch)
    before = await loaded_ids(engine)
    assert (await engine.publish(store=store, adapter=adapter)).outcome is PublishOutcome.ALREADY_LOADED
    assert reads == []
    assert await loaded_ids(engine) == before


async def test_versions_do_not_disturb_each_other(engine: EngineActor, store: StoreConfig, exporter: PeftExporter):
    await engine.publish(store=store, adapter=exporter.export("apart", 1, seed=1))
    first = await answers(engine, "apart@1")
    await engine.publish(store=store, adapter=exporter.export("apart", 2, seed=2))
    second = await answers(engine, "apart@2")
    assert await answers(engine, "apart@1") == first
    assert {answer.adapter_version for answer in second} == {"apart@2"}
    assert all(a.tokens != b.tokens for a, b in zip(first, second, strict=True))


async def test_a_running_batch_ends_under_its_version_while_newer_ones_are_published(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    for count in COUNTS:
        name = f"held{count}"
        versions = [exporter.export(name, version, seed=version) for version in range(1, 5)]
        await engine.publish(store=store, adapter=versions[0])
        alone = await answers(engine, f"{name}@1", make_requests(count), max_response_tokens=200)
        running = asyncio.create_task(answers(engine, f"{name}@1", make_requests(count), max_response_tokens=200))
        await until_decoding(engine)
        for version in versions[1:]:
            await engine.publish(store=store, adapter=version)
        beside = not running.done()
        assert [label for label in await engine.serving() if label.startswith(name)] == [f"{name}@3", f"{name}@4"]
        completions = await running
        if beside:
            break
    assert beside
    assert {(answer.adapter_version, answer.adapter_digest) for answer in completions} == {
        (f"{name}@1", versions[0].digest)
    }
    assert all(answer.finish_reason is not FinishReason.ABORT for answer in completions)
    assert [answer.tokens[:8] for answer in completions] == [answer.tokens[:8] for answer in alone]
    assert len(await loaded_ids(engine)) == len(await engine.serving())


async def test_one_adapter_decodes_while_another_loads(engine: EngineActor, store: StoreConfig, exporter: PeftExporter):
    await engine.publish(store=store, adapter=exporter.export("busy", 1))
    for count in COUNTS:
        adapter = exporter.export("other", count)
        running = asyncio.create_task(answers(engine, "busy@1", make_requests(count), max_response_tokens=200))
        await until_decoding(engine)
        assert (await engine.publish(store=store, adapter=adapter)).outcome is PublishOutcome.LOADED
        beside = not running.done()
        assert len(await running) == count
        if beside:
            break
    assert beside


def truncated(weights: bytes) -> bytes:
    return weights[:-100]


def renamed(old: str, new: str):
    """Alters tensor names in a safetensors file, keeping its length fields right."""

    def edit(weights: bytes) -> bytes:
        (length,) = struct.unpack("<Q", weights[:8])
        header = weights[8 : 8 + length].replace(old.encode(), new.encode())
        return struct.pack("<Q", len(header)) + header + weights[8 + length :]

    return edit


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ({"edit_weights": truncated}, DataError, "cannot be read"),
        ({"edit_config": lambda config: config | {"r": 2}}, DataError, "the config says rank 2"),
        ({"rank": 16}, DataError, "rank 16 exceeds the engine's 8"),
        ({"edit_weights": renamed("base_model.model.", "module.")}, DataError, r"is not base_model\.model"),
        ({"edit_weights": renamed("_proj", "_projection")}, EngineError, "vLLM refused the adapter"),
        ({"edit_weights": renamed("model.layers.", "model.blocks.")}, EngineError, "no module matched"),
        ({"edit_weights": renamed("layers.1.", "layers.7.")}, EngineError, "not every module matched|probe disagrees"),
        ({"edit_config": lambda config: config | {"lora_alpha": 80}}, EngineError, "probe disagrees"),
    ],
    ids=["truncated", "rank in config", "large rank", "prefix", "modules", "layers", "one layer", "alpha"],
)
async def test_a_failed_load_leaves_what_was_served(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter, fault: dict, error: type[Exception], message: str
):
    await engine.publish(store=store, adapter=exporter.export("firm", 1, seed=1))
    before, serving, loaded = await answers(engine, "firm@1"), await engine.serving(), await loaded_ids(engine)
    with pytest.raises(error, match=rf"firm@2: .*{message}"):
        await engine.publish(store=store, adapter=exporter.export("firm", 2, seed=2, **fault))
    assert await engine.serving() == serving
    assert await loaded_ids(engine) == loaded
    assert await answers(engine, "firm@1") == before


async def test_bytes_with_another_digest_are_refused(engine: EngineActor, store: StoreConfig, exporter: PeftExporter):
    adapter = exporter.export("digest", 1, seed=77)
    path = Path(urlparse(store.uri).path, adapter.weights.key)
    overwrite(path, bytes(reversed(path.read_bytes())))
    with pytest.raises(DigestMismatch):
        await engine.publish(store=store, adapter=adapter)
    assert "digest@1" not in await engine.serving()


async def test_a_file_that_changes_after_the_load_changes_nothing(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    adapter = exporter.export("view", 1, seed=78)
    await engine.publish(store=store, adapter=adapter)
    before = await answers(engine, "view@1")
    path = Path(urlparse(store.uri).path, adapter.weights.key)
    overwrite(path, bytes(len(path.read_bytes())))
    assert await answers(engine, "view@1") == before


async def test_twenty_publishes_stay_within_the_window_and_read_each_file_once(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter, monkeypatch: pytest.MonkeyPatch
):
    adapters = [exporter.export("many", version, seed=version) for version in range(20)]
    reads = count_reads(monkeypatch)
    for adapter in adapters:
        reply = await engine.publish(store=store, adapter=adapter)
        await answers(engine, adapter.label, make_requests(2), max_response_tokens=2)
        assert sum(label.startswith("many@") for label in reply.resident) <= 2
        assert len(await loaded_ids(engine)) <= 4
    assert sorted(reads) == sorted(ref.key for a in adapters for ref in (a.weights, a.config, a.probe))
    assert not list(shared_folder().glob(f"{os.getpid()}-*"))
    assert [label for label in await engine.serving() if label.startswith("many@")] == ["many@18", "many@19"]


async def test_a_retired_adapter_ends_its_batches_and_is_refused(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    await engine.publish(store=store, adapter=exporter.export("gone", 1))
    running = asyncio.create_task(answers(engine, "gone@1", make_requests(32), max_response_tokens=200))
    await until_decoding(engine)
    await engine.retire("gone")
    with pytest.raises(EngineError, match="aborted"):
        await running
    with pytest.raises(EngineError, match="gone@1: not loaded"):
        await answers(engine, "gone@1")
    assert len(await loaded_ids(engine)) == len(await engine.serving())


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys read from local stores from here on."""
    keys: list[str] = []
    read = LocalObjects.read

    def counting(self: LocalObjects, key: str, *args: int) -> bytes | None:
        keys.append(key)
        return read(self, key, *args)

    monkeypatch.setattr(LocalObjects, "read", counting)
    return keys


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def handed_over(store: StoreConfig, adapter: AdapterRef) -> Path:
    """What the trainer leaves in memory for `adapter`; here the files of the store."""
    blobs, directory = open_store(store), ring_directory(adapter.name, adapter.version)
    (directory / WEIGHTS).write_bytes(blobs.get_blob(adapter.weights))
    (directory / CONFIG).write_bytes(blobs.get_blob(adapter.config))
    return directory


async def test_a_staged_adapter_serves_once_it_is_published_and_is_not_read_again(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter, monkeypatch: pytest.MonkeyPatch
):
    await engine.publish(store=store, adapter=exporter.export("plain", 1, seed=3))
    adapter = exporter.export("staged", 1, seed=3)
    directory = handed_over(store, adapter)
    await engine.stage(label=adapter.label, directory=str(directory))
    with pytest.raises(EngineError, match="staged@1: not loaded"):
        await answers(engine, "staged@1")
    announce(directory, adapter, open_store(store).get_blob(adapter.probe))
    loaded, reads = await loaded_ids(engine), count_reads(monkeypatch)
    await engine.publish(store=store, adapter=adapter)
    assert reads == []
    assert set(await loaded_ids(engine)) <= set(loaded)
    assert contents(await answers(engine, "staged@1")) == contents(await answers(engine, "plain@1"))
    # the trainer writes the version after the next one there
    (directory / WEIGHTS).write_bytes(bytes(adapter.weights.size))
    assert contents(await answers(engine, "staged@1")) == contents(await answers(engine, "plain@1"))
    shutil.rmtree(directory)


async def test_another_version_than_the_staged_one_is_published_in_its_place(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    directories = [handed_over(store, exporter.export("left", version, seed=version)) for version in (1, 2)]
    for version, directory in enumerate(directories, 1):
        await engine.stage(label=f"left@{version}", directory=str(directory))
    await engine.publish(store=store, adapter=exporter.export("left", 3, seed=3))
    assert len(await loaded_ids(engine)) == len(await engine.serving())
    assert [label for label in await engine.serving() if label.startswith("left")] == ["left@3"]
    for directory in directories:
        shutil.rmtree(directory)


async def test_other_bytes_than_the_exporter_s_do_not_serve_though_they_were_staged(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    await engine.publish(store=store, adapter=exporter.export("true", 1, seed=1))
    adapter, other = exporter.export("late", 1, seed=1), exporter.export("late", 2, seed=2)
    directory = handed_over(store, adapter)
    right = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(open_store(store).get_blob(other.weights))
    await engine.stage(label=adapter.label, directory=str(directory))
    (directory / WEIGHTS).write_bytes(right)
    announce(directory, adapter, open_store(store).get_blob(adapter.probe))
    await engine.publish(store=store, adapter=adapter)
    assert contents(await answers(engine, "late@1")) == contents(await answers(engine, "true@1"))
    assert len(await loaded_ids(engine)) == len(await engine.serving())
    shutil.rmtree(directory)


async def test_a_slot_keeps_nothing_of_a_wider_adapter_that_was_in_it(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    for version, rank in ((1, 4), (2, 4), (3, 2), (4, 2), (5, 2)):
        adapter = exporter.export("narrow", version, seed=version, rank=rank, scale=0.5)
        reply = await engine.publish(store=store, adapter=adapter)
        assert reply.probe_error < PARITY


async def test_a_file_that_cannot_be_loaded_leaves_nothing_staged(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    directory = handed_over(store, exporter.export("cut", 1))
    (directory / WEIGHTS).write_bytes(b"the version after the next")
    loaded = await loaded_ids(engine)
    with pytest.raises(EngineError, match="cut@1: vLLM refused the adapter"):
        await engine.stage(label="cut@1", directory=str(directory))
    assert await loaded_ids(engine) == loaded
    shutil.rmtree(directory)
