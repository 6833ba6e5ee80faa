"""Every error lora-rl raises on purpose. Each is also the stdlib kind a caller would expect, and can be pickled.

Messages read: subject, value, rule, mend. For example
`adapter.rank: 600 exceeds trainer.max_rank 64; lower it or raise trainer.max_rank`.
"""


class LoraRlError(Exception):
    """Root of all errors of this project."""


class ConfigError(LoraRlError, ValueError):
    """A config, adapter file or option that cannot work; the text lists every fault found."""


class DataError(LoraRlError, ValueError):
    """Prompts, samples or adapters that cannot be read or do not have the promised form."""


class StoreError(LoraRlError, OSError):
    """The object store refused or lost something."""


class CommitConflict(StoreError):
    """Another writer committed a record that differs from ours."""


class DigestMismatch(StoreError):
    """Bytes in the store are not those that were committed."""


class ClusterError(LoraRlError, RuntimeError):
    """Ray could not be reached, or could not place what the run needs."""


class ActorLost(ClusterError):
    """An actor died or became unreachable during a call. Nothing committed is lost; the iteration can be run again."""


class EngineDied(ActorLost):
    """vLLM's processes ended under a living engine actor. Its `start` starts them again, serving nothing."""


class EngineError(LoraRlError, RuntimeError):
    """The rollout engine cannot serve the request."""


class TrainerError(LoraRlError, RuntimeError):
    """The trainer cannot do the step, or its result must not be used."""


class PeerFailed(TrainerError):
    """A rank of the trainer could not go on because another one failed; the other's own error says why."""


class RewardError(LoraRlError, RuntimeError):
    """Rewards that cannot be computed, or that leave nothing to train on."""


class RunCancelled(LoraRlError, InterruptedError):
    """A run was told to end before its last iteration. The same command goes on."""


class DeadlineExceeded(LoraRlError, TimeoutError):
    """A call took longer than its deadline and was cancelled."""
