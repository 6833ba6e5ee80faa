"""A process with an engine of its own, for tests that compare engines and kill one. Talks JSON lines.

python -m tests.integration.engine.fresh_engine MODEL STORE ADAPTER_JSON BATCH_SIZE
"""

import asyncio
import json
import sys

from lora_rl.config import EngineConfig, StoreConfig
from lora_rl.engine.actor import EngineActor
from lora_rl.errors import EngineError
from lora_rl.store import AdapterRef
from tests.integration.engine.batches import SMALL_ENGINE, answers, contents, make_requests


async def main(model: str, store: str, adapter_json: str, size: str) -> None:
    adapter = AdapterRef.from_json(json.loads(adapter_json))
    engine = EngineActor(model_path=model, dtype="float32", engine=EngineConfig(**SMALL_ENGINE), max_rank=4, slots=2)
    await engine.start()
    try:
        await answers(engine, adapter.label)
        say(refusal=None)
    except EngineError as error:
        say(refusal=str(error))
    await engine.publish(store=StoreConfig(uri=store), adapter=adapter)
    say(contents=contents(await answers(engine, adapter.label, make_requests(int(size)))))
    await asyncio.Event().wait()


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
