from lora_rl.config import RewardConfig, RewardTerm
from lora_rl.rewards.check import check_rewards


def test_sound_config_has_no_faults() -> None:
    terms = (RewardTerm(name="exact"), RewardTerm(name="tests.unit.rewards.graders:awaited", params={"factor": 2}))
    assert check_rewards(RewardConfig(terms=terms)) == []


def test_every_fault_is_reported_with_its_field() -> None:
    terms = (
        RewardTerm(name="exakt"),
        RewardTerm(name="exact"),
        RewardTerm(name="format"),
        RewardTerm(name="nowhere:f"),
    )
    faults = check_rewards(RewardConfig(terms=terms))
    assert [fault.partition(": ")[0] for fault in faults] == ["reward.terms.0", "reward.terms.2", "reward.terms.3"]
    assert "pattern" in faults[1]
