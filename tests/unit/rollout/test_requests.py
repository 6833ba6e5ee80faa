"""Requests are a function of the run's seed and the prompt, and fit the engine."""

import pytest

from lora_rl.data.types import Prompt
from lora_rl.rollout.requests import requests_of, sample_seed, share_between


def _prompts(count: int) -> list[Prompt]:
    return [Prompt(id=f"0/{n}", text="", tokens=[n], label=None) for n in range(count)]


def test_a_seed_never_changes():
    # A resumed run on another version has to draw the same tokens.
    assert sample_seed(0, "0/0/0") == 1879184629313624024


def test_seeds_fit_signed_64_bits_and_differ_in_the_bits_that_cpu_generators_use():
    seeds = [sample_seed(7, f"0/{n}/0") for n in range(2000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
    assert len({seed % 2**32 for seed in seeds}) == 2000


def test_another_run_seed_or_sample_gives_another_seed():
    assert len({sample_seed(0, "0/0/0"), sample_seed(1, "0/0/0"), sample_seed(0, "0/0/1")}) == 3


def test_a_prompt_gets_a_request_for_each_sample():
    (prompt,) = _prompts(1)
    requests = requests_of(prompt, num_samples=3, seed=0)
    assert [request.id for request in requests] == ["0/0/0", "0/0/1", "0/0/2"]
    assert {tuple(request.prompt_tokens) for request in requests} == {(0,)}
    assert len({request.seed for request in requests}) == 3


@pytest.mark.parametrize(("num_prompts", "num_engines"), [(8, 1), (8, 3), (7, 2), (2, 3)])
def test_shares_are_contiguous_and_nearly_equal(num_prompts, num_engines):
    prompts = _prompts(num_prompts)
    shares = share_between(prompts, num_engines)
    assert len(shares) == num_engines
    assert [prompt for share in shares for prompt in share] == prompts
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
