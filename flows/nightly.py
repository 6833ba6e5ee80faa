"""A run of its own each night."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from flows.train import train
from lora_rl.config import RunConfig, load_config
from lora_rl.preflight import check_run, make_importable
from lora_rl.store import RunRecords, open_store


@flow(name="nightly", flow_run_name="nightly {config}", persist_result=False)
async def nightly(config: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Trains what the YAML file `config` says, with `key.path=value` overrides, as the run `<its run name>-<YYYYMMDD>`.

    The date is that for which this flow run was scheduled, in UTC: a retry resumes the same run.
    """
    tonight = await asyncio.to_thread(create_run_of, config, overrides, flow_run.get_scheduled_start_time())
    return await train(str(tonight.run_name), tonight.store.uri, tonight.iterations)


def create_run_of(config: str, overrides: Iterable[str], scheduled: datetime) -> RunConfig:
    """The checked config of the night's run, which is in the store afterwards.

    Raises ConfigError that lists every fault.
    """
    given = load_config(config, overrides)
    given = given.model_copy(update={"run_name": f"{given.run_name}-{scheduled.astimezone(UTC):%Y%m%d}"})
    make_importable(Path(config).absolute().parent)
    checked = check_run(given, starts_actors=False)
    records = RunRecords(open_store(checked.store), str(checked.run_name))
    records.create_run(checked)
    return checked
