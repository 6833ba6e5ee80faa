"""Trainers in processes of their own: every layout computes what one rank does, and a run goes on under another."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from lora_rl.store import BlobRef
from tests.builders import make_training_samples
from tests.integration.trainer.workplace import Workplace
from tests.tolerances import EXACT, PARITY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    place = Workplace(tmp_path_factory.mktemp("trainer"))
    yield place
    place.end()


@pytest.fixture(scope="module")
def one(workplace: Workplace) -> dict[str, Any]:
    """Three steps on one rank."""
    return workplace.train(tp=1)[0]


@pytest.fixture(scope="module")
def two(workplace: Workplace) -> list[dict[str, Any]]:
    """The same on two ranks."""
    return workplace.train(tp=2)


def _largest_gap(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    assert ours.keys() == theirs.keys()
    return max((torch.as_tensor(ours[name]) - torch.as_tensor(theirs[name])).abs().max().item() for name in ours)


def _assert_alike(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Outputs of the steps that both ended with, and gradients at the end."""
    steps = len(ours["metrics"])
    for our_step, their_step in zip(ours["metrics"], theirs["metrics"][-steps:], strict=True):
        for name in ("loss/total", "policy/entropy/mean", "mismatch/logp_abs/mean", "policy/grad_norm"):
            assert our_step[name] == pytest.approx(their_step[name], abs=PARITY), name
    assert max(torch.tensor(gradient).abs().max().item() for gradient in theirs["gradients"].values()) > 0.01
    assert _largest_gap(ours["gradients"], theirs["gradients"]) < PARITY


def _assert_close(workplace: Workplace, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Outputs and gradients of two runs, and weights after one step; later Adam steps amplify rounding."""
    assert len(ours["metrics"]) == len(theirs["metrics"])
    _assert_alike(ours, theirs)
    assert _largest_gap(workplace.weights(ours, 1), workplace.weights(theirs, 1)) < PARITY * 10


def _assert_the_same_end(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """To the byte on a CPU; a GPU adds up the gradients of shared rows in any order."""
    if torch.cuda.is_available():
        _assert_alike(ours, theirs)
    else:
        assert ours["states"] == theirs["states"][-len(ours["states"]) :]


def test_a_fresh_process_makes_the_same_state(workplace, one):
    workplace.end()
    _assert_the_same_end(workplace.train(tp=1)[0], one)


def test_a_run_that_goes_on_in_a_fresh_process_ends_with_the_same_state(workplace, one):
    first = workplace.train(tp=1, steps=workplace.batches[:1])[0]
    workplace.end()
    rest = workplace.train(tp=1, steps=workplace.batches[1:], start=first["states"][-1])[0]
    _assert_the_same_end(rest, one)


def test_two_ranks_reply_alike(two):
    for name in ("states", "adapter", "metrics", "gradients"):
        assert two[0][name] == two[1][name]


def test_two_ranks_start_from_the_very_weights_of_one(one, two):
    assert two[0]["states"][0] == one["states"][0]


def test_two_ranks_have_the_outputs_gradients_and_weights_of_one(workplace, one, two):
    _assert_close(workplace, two[0], one)


def test_probes_of_one_and_two_ranks_agree(workplace, one, two):
    probes = [
        json.loads(workplace.store.get_blob(BlobRef.from_json(reply["adapter"]["probe"]))) for reply in (one, two[0])
    ]
    logp = [dict(zip(probe["token_ids"], probe["logp"], strict=True)) for probe in probes]
    shared = logp[0].keys() & logp[1].keys()
    assert len(shared) >= 15
    # Three Adam steps amplify rounding; the outputs stay together.
    assert max(abs(logp[0][token] - logp[1][token]) for token in shared) < 1e-3


def test_a_state_of_two_ranks_goes_on_at_one_and_comes_back_exactly(workplace, two):
    alone = workplace.train(tp=1, start=two[0]["states"][-1], steps=workplace.batches[:1])[0]
    assert _largest_gap(workplace.weights(alone, 0), workplace.weights(two[0])) == EXACT
    pair = workplace.train(tp=2, start=two[0]["states"][-1], steps=workplace.batches[:1])[0]
    assert _largest_gap(workplace.weights(alone), workplace.weights(pair)) < PARITY * 10


@pytest.mark.parametrize(
    "fields", [{}, {"type": "lora", "only_train": ["lora_B", "*.q_proj"]}], ids=["plain", "shared"]
)
def test_dropout_and_recompute_are_the_same_on_two_ranks(workplace, fields):
    options = {"adapter": {"dropout": 0.2} | fields, "recompute": True, "steps": workplace.batches[:1]}
    one, two = (workplace.train(tp=tp, **options)[0] for tp in (1, 2))
    assert _largest_gap(two["gradients"], one["gradients"]) < PARITY
    assert _largest_gap(workplace.weights(two), workplace.weights(one)) < PARITY * 10


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_other_families_are_the_same_on_two_ranks(workplace, family):
    options = {"family": family, "steps": workplace.batches[:1]}
    one, two = (workplace.train(tp=tp, **options)[0] for tp in (1, 2))
    assert _largest_gap(two["gradients"], one["gradients"]) < PARITY


LAYOUTS = {
    "dp2": {"dp": 2},
    "dp3": {"dp": 3},
    "pp2": {"pp": 2},
    "tp2dp2": {"tp": 2, "dp": 2},
    "tp2pp2": {"tp": 2, "pp": 2},
    "pp2dp2": {"pp": 2, "dp": 2},
}


def _one_reply(replies: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks reply alike, with the gradients of all stages."""
    gradients = {}
    for reply in replies:
        for name, gradient in reply.pop("gradients").items():
            assert gradients.setdefault(name, gradient) == gradient
    assert all(reply == replies[0] for reply in replies)
    return replies[0] | {"gradients": gradients}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_has_the_outputs_gradients_and_weights_of_one_rank(workplace, one, layout):
    reply = _one_reply(workplace.train(**layout))
    assert reply["states"][0] == one["states"][0]
    _assert_close(workplace, reply, one)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_state_passes_through_a_layout_byte_by_byte(workplace, one, layout):
    reply = _one_reply(workplace.train(start=one["states"][-1], steps=workplace.batches[:1], **layout))
    assert reply["saved"] == one["states"][-1]
    alone = workplace.train(start=reply["states"][-1], steps=workplace.batches[:1])[0]
    assert alone["saved"] == reply["states"][-1]


@pytest.mark.parametrize("layout", [{"dp": 2}, {"pp": 2}], ids=["dp2", "pp2"])
@pytest.mark.parametrize("where", ["loss", "reward"])
def test_reference_and_old_log_probabilities_are_those_of_one_rank(workplace, where, layout):
    options = {
        "steps": workplace.batches[:1],
        "algorithm": {"kl": {"where": where, "coefficient": 0.1}, "old_logp": "recompute"},
    }
    one, split = workplace.train(**options)[0], _one_reply(workplace.train(**layout, **options))
    _assert_close(workplace, split, one)


@pytest.mark.parametrize("layers", ["*.layers.0.*", "*.layers.1.*"])
def test_a_stage_that_holds_nothing_of_an_adapter_passes_on(workplace, layers):
    options = {"steps": workplace.batches[:1], "adapter": {"target_modules": [layers]}}
    one, split = workplace.train(**options)[0], _one_reply(workplace.train(pp=2, **options))
    _assert_close(workplace, split, one)


def test_dropout_and_recompute_are_the_same_on_two_stages(workplace):
    options = {"adapter": {"dropout": 0.2}, "recompute": True, "steps": workplace.batches[:1]}
    one, split = workplace.train(**options)[0], _one_reply(workplace.train(pp=2, **options))
    _assert_close(workplace, split, one)


def test_the_exported_adapter_and_probe_of_two_stages_are_whole(workplace, one):
    split = _one_reply(workplace.train(pp=2, start=one["states"][-1], steps=[]))
    for part in ("weights", "config"):
        assert split["adapter"][part] == one["adapter"][part]
    probes = [
        json.loads(workplace.store.get_blob(BlobRef.from_json(reply["adapter"]["probe"]))) for reply in (one, split)
    ]
    for name in ("logp", "logp_base"):
        assert probes[1][name] == pytest.approx(probes[0][name], abs=PARITY)


def test_an_untied_head_is_on_the_last_stage(workplace):
    options = {"family": "llama", "steps": workplace.batches[:1]}
    one, split = workplace.train(**options)[0], _one_reply(workplace.train(pp=2, **options))
    _assert_close(workplace, split, one)


@pytest.mark.parametrize("layout", [{"dp": 2}, {"pp": 2}, {"dp": 3}], ids=["dp2", "pp2", "dp3"])
def test_a_sample_that_is_not_a_number_skips_the_step_on_every_rank(workplace, layout):
    samples = make_training_samples()
    poisoned = replace(samples[0], logp_rollout=[math.nan] * len(samples[0].logp_rollout))
    options = {
        "steps": [workplace.put([poisoned, *samples[1:]]), workplace.batches[1]],
        "algorithm": {"old_logp": "rollout"},
    }
    one, split = workplace.train(**options)[0], _one_reply(workplace.train(**layout, **options))
    assert one["stepped"] == split["stepped"] == [False, True]
    assert split["states"][1] == one["states"][1]
