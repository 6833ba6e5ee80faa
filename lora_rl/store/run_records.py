"""The records of one run: its config, each step's commit, each iteration's commit.

runs/<run>/run.json                            config, versions, fork; final once iteration 0 is committed
runs/<run>/settings.json                       config and versions as last given
runs/<run>/start/<step>.json                   what precedes the first iteration
runs/<run>/it00012/<step>.json                 a step's commit
runs/<run>/it00012/attempts/<step>-<n>.json    the n-th execution of a step began
runs/<run>/it00012/COMMIT.json                 the iteration's commit; these have no gaps
runs/<run>/starts/<flow-run id>.json           the iteration a flow run began with
"""

import logging
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from lora_rl.config import RunConfig, differences
from lora_rl.config.run import changes_of_result, changes_of_rounding
from lora_rl.errors import CommitConflict, ConfigError, DataError, StoreError
from lora_rl.store.artifact_store import ArtifactStore
from lora_rl.store.canonical import canonical_json
from lora_rl.store.names import check_name
from lora_rl.store.records import Fork, StepRecord, utc_now
from lora_rl.store.refs import BlobRef
from lora_rl.store.versions import NUMERICS, versions

START = -1
"""The iteration under which the records before the first one stand."""

logger = logging.getLogger("lora_rl.store")

_OF_ITERATION = re.compile(r"runs/(?P<run>[^/]+)/(start|it(?P<number>\d+))/")
_ATTEMPT = re.compile(r"runs/[^/]+/[^/]+/attempts/")

READERS = 32
"""Commits that are read at a time: on S3 each takes tens of milliseconds, nearly all of it waiting."""


class RunRecords:
    """Reads and commits the records of `run`, by iteration; that of what precedes the first one is START."""

    def __init__(self, store: ArtifactStore, run: str):
        self._store = store
        self._name = check_name("run name", run)
        self._run = f"runs/{run}"
        self._run_key, self._settings_key = f"{self._run}/run.json", f"{self._run}/settings.json"
        self._committed = 0  # iterations below are known to be committed; commits are never taken back

    def create_run(self, config: RunConfig, fork: Fork | None = None) -> dict[str, Any]:
        """The run's document, written now if there is none; from here on the run is executed as `config` says.

        `fork` is the iteration of another run of this store after which the run starts; null for anew.
        Until the first iteration is committed, another config takes the place of the run's own. The cluster's lease
        keeps two drivers of such a run apart, and no iteration is committed whose config was replaced meanwhile.
        Raises ConfigError, with each difference, where `config` would give the run another result; DataError where
        its rows alone are others.
        """
        given = {"config": config.model_dump(mode="json"), "versions": versions()}
        ours = given | {"config_sha256": config.sha256, "created": utc_now()}
        if fork is not None:
            self._check_state(fork)
            ours["fork"] = asdict(fork)
        stored = self._store.create(self._run_key, ours)
        if stored != ours:
            stored = self._resumed(config, stored, ours)
        self._store.replace(self._settings_key, given)
        return stored

    def _resumed(self, config: RunConfig, stored: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
        fork = stored.get("fork")
        ours = {"fork": fork} | ours
        if self.iteration_commit(0) is None:
            if (ours["config_sha256"], ours["fork"]) == (stored["config_sha256"], fork):
                return stored
            self._store.delete(self._commit_key(START))  # is made again; steps of the same inputs are reused
            self._store.delete(self._settings_key)
            self._store.replace(self._run_key, ours)
            return ours
        if ours["fork"] != fork:
            raise ConfigError(f"--fork: run {self._name} exists and began otherwise; use another --run-name")
        before = self.config()
        lines = changes_of_result(config, before)
        if [line.partition(":")[0] for line in lines] == ["data.digest"]:
            raise DataError(
                f"run {self._name}: the rows of its data have changed since it began ({lines[0]}); put back those that "
                "it began with, or use another --run-name"
            )
        if lines:
            raise ConfigError(
                f"run {self._name}: exists with another config (stored -> given)\n"
                + "\n".join(f"  {line}" for line in lines)
                + "\nuse another --run-name, or the config that the run was made with"
            )
        if lines := changes_of_rounding(config, before):
            logger.warning("run %s: goes on correctly, but no longer bit for bit: %s", self._name, "; ".join(lines))
        known = (self._store.read(self._settings_key) or {}).get("versions", stored["versions"])
        if lines := differences(_numerics(versions()), _numerics(known)):
            logger.warning("run %s: goes on with other versions: %s", self._name, "; ".join(lines))
        return stored

    def run_document(self) -> dict[str, Any] | None:
        """{config, config_sha256, created, versions, fork}; None where the run does not exist."""
        return self._store.read(self._run_key)

    def origin(self) -> dict[str, Any] | None:
        """The commit of another run that this one starts from; None where it starts anew."""
        fork = (self.run_document() or {}).get("fork")
        return self._commit_of(Fork(**fork)) if fork else None

    def _commit_of(self, fork: Fork) -> dict[str, Any]:
        commit = RunRecords(self._store, fork.run).iteration_commit(fork.iteration)
        if commit is None:
            raise ConfigError(
                f"--fork: iteration {fork.iteration} of {fork.run} is not committed in {self._store.uri()}; see "
                f"`lora-rl status {fork.run}`"
            )
        return commit

    def config(self) -> RunConfig:
        """The run's config as last given. Raises ConfigError without a run, and for a config that is no longer one."""
        document = self.run_document()
        if document is None:
            raise ConfigError(f"run {self._name}: not in the store {self._store.uri()}")
        settings = self._store.read(self._settings_key) or {}
        try:
            # settings of older runs hold sections alone
            return RunConfig.model_validate(document["config"] | settings.get("config", settings))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            raise ConfigError(
                f"run {self._name}: its config is none of this version ({faults}); go on with lora-rl "
                f"{document['versions']['lora-rl']}, which recorded it, or use another --run-name"
            ) from None

    def _check_state(self, fork: Fork) -> None:
        state = BlobRef.from_json(self._commit_of(fork)["state"])
        if not self._store.has_blob(state):
            raise ConfigError(
                f"--fork: the state after iteration {fork.iteration} of {fork.run} is no longer in "
                f"{self._store.uri()}, `lora-rl prune` deletes old ones; take the last iteration or the run's start, -1"
            )

    def iterations_wanted(self) -> int:
        """Iterations that the run goes to, as last given, also where its config is none of this version."""
        document, settings = self.run_document() or {}, self._store.read(self._settings_key) or {}
        return (document["config"] | settings.get("config", settings))["iterations"]

    def step_record(self, it: int, step: str) -> StepRecord | None:
        """The step's commit record, if there is one. `valid` tells whether it can be relied on."""
        doc = self._store.read(self._step_key(it, step))
        return StepRecord.from_json(doc) if doc else None

    def valid(self, record: StepRecord) -> bool:
        """Whether every output is in the store with its size."""
        return all(self._store.has_blob(BlobRef.from_json(output)) for output in record.outputs.values())

    def commit_step(self, it: int, record: StepRecord) -> StepRecord:
        """Commits `record`, or adopts the one that another writer committed with the same fingerprint.

        Raises CommitConflict if the fingerprints differ, StoreError if an output of `record` is not in the store.
        """
        key = self._step_key(it, record.step)
        if not self.valid(record):
            raise StoreError(f"{self._store.uri(key)}: an output is missing from the store; put all before the commit")
        stored = StepRecord.from_json(self._store.create(key, record.to_json()))
        if stored.fingerprint != record.fingerprint:
            raise CommitConflict(
                f"{self._store.uri(key)}: committed with fingerprint {stored.fingerprint[:12]}, ours is "
                f"{record.fingerprint[:12]} ({_what_differs(stored, record)}); "
                "use another --run-name, or delete this record and those of all later steps"
            )
        if self.valid(stored):
            return stored
        self._store.replace(key, record.to_json())  # its outputs were lost
        return record

    def discard_step(self, it: int, step: str) -> None:
        """Takes back the record of a step to be done again. Raises CommitConflict once the iteration is committed."""
        if self.iteration_commit(it) is not None:
            raise CommitConflict(f"iteration {it}: is committed, its steps are final; use another --run-name")
        self._store.delete(self._step_key(it, step))

    def begin_attempt(self, it: int, step: str) -> int:
        """Counts an execution of the step, whatever becomes of it, and returns its number from 1 up."""
        marker = {"id": uuid.uuid4().hex, "started": utc_now()}
        attempt = 1
        while self._store.create(self._attempt_key(it, step, attempt), marker) != marker:
            attempt += 1
        return attempt

    def attempts(self, it: int, step: str) -> int:
        """Executions of the step that were begun."""
        return len(self.begun(it, step))

    def begun(self, it: int, step: str) -> list[str]:
        """When each execution of the step began."""
        times: list[str] = []
        while marker := self._store.read(self._attempt_key(it, step, len(times) + 1)):
            times.append(marker["started"])
        return times

    def commit_iteration(self, it: int, doc: dict[str, Any]) -> dict[str, Any]:
        """Commits the iteration with `doc` and the time. Idempotent; the document that is there comes back.

        Raises CommitConflict if one with other results is there, StoreError if the iteration before is not committed.
        """
        if it > 0 and self.iteration_commit(it - 1) is None:
            raise StoreError(f"iteration {it}: iteration {it - 1} is not committed; commit iterations in their order")
        stored = self._store.create(self._commit_key(it), {**doc, "committed": utc_now()})
        if canonical_json(_results(stored)) != canonical_json(_results(doc)):
            raise CommitConflict(
                f"{self._store.uri(self._commit_key(it))}: another document was committed "
                f"({'; '.join(differences(_results(doc), _results(stored)))}); use another --run-name"
            )
        return stored

    def iteration_commit(self, it: int) -> dict[str, Any] | None:
        """The iteration's commit, if there is one."""
        return self._store.read(self._commit_key(it))

    def iteration_commits(self, count: int) -> list[dict[str, Any]]:
        """The commits of iterations 0 to `count` - 1, those that there are; READERS at a time."""
        with ThreadPoolExecutor(READERS) as readers:
            return [commit for commit in readers.map(self.iteration_commit, range(count)) if commit is not None]

    def first_uncommitted(self, start: int = 0) -> int:
        """The first iteration from `start` on without a commit. Reads in the order of log(iterations) documents."""
        low = max(start, self._committed)
        high, stride = low, 1
        while self.iteration_commit(high):
            low, high, stride = high + 1, high + 1 + stride, stride * 2
        while low < high:
            middle = (low + high) // 2
            if self.iteration_commit(middle):
                low = middle + 1
            else:
                high = middle
        if low > start:
            self._committed = low
        return low

    def pin_start(self, flow_run_id: str, it: int) -> int:
        """The iteration that this flow run began with: `it` at the first call, and that one ever after."""
        return self._store.create(f"{self._run}/starts/{check_name('flow run', flow_run_id)}.json", {"it": it})["it"]

    def _folder(self, it: int) -> str:
        return f"{self._run}/start" if it == START else f"{self._run}/it{it:05d}"

    def _step_key(self, it: int, step: str) -> str:
        return f"{self._folder(it)}/{check_name('step', step)}.json"

    def _attempt_key(self, it: int, step: str, attempt: int) -> str:
        return f"{self._folder(it)}/attempts/{check_name('step', step)}-{attempt}.json"

    def _commit_key(self, it: int) -> str:
        return f"{self._folder(it)}/COMMIT.json"


def iteration_of(key: str) -> tuple[str, int] | None:
    """Run and iteration of a record's key; null for what is the whole run's."""
    match = _OF_ITERATION.match(key)
    return match and (match["run"], START if match["number"] is None else int(match["number"]))


def may_refer(key: str) -> bool:
    """Whether the object below `runs/` is a document that may refer to blobs."""
    return key.endswith(".json") and not _ATTEMPT.match(key)


def _numerics(found: dict[str, str]) -> dict[str, Any]:
    return {name: found.get(name) for name in NUMERICS}


def _what_differs(stored: StepRecord, ours: StepRecord) -> str:
    inputs = differences(ours.inputs, stored.inputs)
    return "inputs " + "; ".join(inputs) if inputs else "same inputs: config, seed or code differ"


def _results(commit: dict[str, Any]) -> dict[str, Any]:
    """What the next iteration starts from. How often and how long was executed may differ between two drivers."""
    return {name: commit.get(name) for name in ("state", "adapter", "position", "samples")}
