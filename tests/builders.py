"""Records for tests: complete, valid, and different only in what a test names."""

from typing import Any

from lora_rl.data.types import FinishReason, Sample


def make_sample(**fields: Any) -> Sample:
    """An ungraded sample of two response tokens; `fields` replace its own."""
    values: dict[str, Any] = {
        "id": "0/0/0",
        "prompt_id": "0/0",
        "prompt_text": "2 + 2 = ",
        "prompt_tokens": [10, 11, 12],
        "response_text": "4",
        "response_tokens": [13, 2],
        "logp_rollout": [-0.1, -0.25],
        "finish_reason": FinishReason.STOP,
        "adapter_version": "default@1",
        "adapter_digest": "d" * 64,
        "label": "4",
    }
    return Sample(**values | fields)


def make_group(prompt_id: str, rewards_G: list[float | None], **fields: Any) -> list[Sample]:
    """One prompt's samples, a reward each."""
    return [
        make_sample(id=f"{prompt_id}/{index}", prompt_id=prompt_id, reward=reward, **fields)
        for index, reward in enumerate(rewards_G)
    ]
