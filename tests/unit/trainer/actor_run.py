"""A trainer of one rank at work on a store of its own."""

from lora_rl.config import AdapterConfig, AlgorithmConfig, OptimizerConfig, SamplingConfig, StoreConfig, TrainerConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.store import open_store
from lora_rl.trainer.actor import TrainerActor
from lora_rl.trainer.state_io import decode_state
from tests.builders import make_training_samples

ADAPTER = AdapterConfig(rank=4, alpha=8, optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1))
ALGORITHM = AlgorithmConfig(max_mismatch=None)


class Run:
    """A started trainer and a store of its own."""

    def __init__(self, trainer: TrainerActor, uri: str):
        self.trainer = trainer
        self.config = StoreConfig(uri=uri)
        self.store = open_store(self.config)

    def samples(self, seed: int = 0, change=None):
        samples = make_training_samples(seed=seed)
        return self.store.put_blob("samples", write_samples([change(s) for s in samples] if change else samples))

    def new(self, adapter: AdapterConfig = ADAPTER, seed: int = 0):
        return self.trainer.new_state(store=self.config, adapter=adapter, seed=seed)

    def step(
        self, start, samples, adapter: AdapterConfig = ADAPTER, algorithm: AlgorithmConfig = ALGORITHM, seed: int = 0
    ):
        return self.trainer.train_step(
            store=self.config,
            adapter=adapter,
            start=start,
            samples=samples,
            algorithm=algorithm,
            sampling=SamplingConfig(),
            seed=seed,
        )

    def export(self, state, adapter: AdapterConfig = ADAPTER, version: int = 1):
        return self.trainer.export_adapter(
            store=self.config, adapter=adapter, state=state, version=version, base_model_name="base"
        )

    def hand_over(self, state, version: int = 1, adapter: AdapterConfig = ADAPTER):
        return self.trainer.hand_over(
            store=self.config, adapter=adapter, state=state, version=version, base_model_name="base"
        )

    def state(self, ref):
        return decode_state(self.store.get_blob(ref), ref.key)


def started_trainer(path, device, **options) -> TrainerActor:
    actor = TrainerActor(model_path=path, dtype="float32", trainer=TrainerConfig(slots=2, max_rank=8, **options))
    actor.start()
    return actor
