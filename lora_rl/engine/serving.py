"""Our requests, versions and probes in vLLM's terms."""

import itertools
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from lora_rl.config import SamplingConfig
from lora_rl.data.types import FinishReason
from lora_rl.engine.probe import ProbeResult, judge
from lora_rl.engine.stop_texts import STOP_TEXTS, Stops, cut_at_stop
from lora_rl.engine.types import Completion, GenerateRequest, Probe
from lora_rl.engine.versions import Version
from lora_rl.engine.vllm_client import EngineRequest, VllmClient
from lora_rl.errors import EngineDied, EngineError
from lora_rl.process_log import where_logged
from lora_rl.store.refs import AdapterRef

_REMOVED_AFTER_LOADING = "loaded"
"""Path in requests: vLLM wants one, and must not find files there."""


class AdapterServer:
    """Answers under loaded versions, and loads new ones."""

    def __init__(self, client: VllmClient, *, max_model_len: int, probe_tolerance: float) -> None:
        self._client = client
        self._max_model_len = max_model_len
        self._probe_tolerance = probe_tolerance
        self._salts = itertools.count()

    async def answer(
        self, version: Version, requests: Sequence[GenerateRequest], sampling: SamplingConfig
    ) -> list[Completion]:
        """One answer to each request, in order.

        Raises EngineError for a request that cannot fit, or a stop text that could never end an answer.
        """
        for request in requests:
            length = len(request.prompt_tokens) + sampling.max_response_tokens
            if not request.prompt_tokens or length > self._max_model_len:
                raise EngineError(
                    f"request {request.id}: {len(request.prompt_tokens)} prompt tokens and "
                    f"{sampling.max_response_tokens} for the answer: must be some, and within engine.max_model_len "
                    f"{self._max_model_len}; leave it out or raise the limit"
                )
        lora, salt = _lora_request(version.ref, version.lora_id), self._new_salt(version.ref)
        stops = self._client.stops_of(sampling.stop)
        outputs = await self._client.run_batch(
            [
                EngineRequest(
                    prompt_tokens=request.prompt_tokens,
                    params=_sampling_params(request, sampling, stops),
                    lora=lora,
                    salt=salt,
                )
                for request in requests
            ]
        )
        return [
            self._completion(request.id, output, version, sampling)
            for request, output in zip(requests, outputs, strict=True)
        ]

    async def load(self, label: str, directory: Path, lora_id: int) -> float:
        """Loads the adapter in a PEFT directory under `lora_id`; returns the seconds. Raises EngineError."""
        started = time.perf_counter()
        try:
            await self._client.add_lora(LoRARequest(label, lora_id, str(directory)))
        except BaseException:
            await self.discard(lora_id)
            raise
        return time.perf_counter() - started

    async def prove(self, ref: AdapterRef, probe: Probe, lora_id: int) -> tuple[ProbeResult, dict[str, float]]:
        """Probes a loaded adapter; returns the result, and the seconds to its first token and of the whole.

        Raises EngineError where it does not act as in the trainer; then it is no longer loaded.
        """
        started = time.perf_counter()
        try:
            logp = await self._probed(ref, probe, _lora_request(ref, lora_id))
            first_token = time.perf_counter()
            logp_base = await self._probed(ref, probe, None)
            result = judge(ref.label, probe, logp, logp_base, tolerance=self._probe_tolerance)
        except BaseException:
            await self.discard(lora_id)
            raise
        return result, {"first_token": first_token - started, "probe": time.perf_counter() - started}

    async def discard(self, lora_id: int) -> None:
        """Unloads what did not come to serve. Where vLLM has died this fails too, and says less than what led here."""
        with suppress(EngineError, EngineDied):
            await self._client.remove_lora(lora_id)

    async def unload(self, version: Version) -> None:
        await self._client.remove_lora(version.lora_id)

    async def sleep(self) -> None:
        await self._client.sleep()

    async def wake(self) -> None:
        await self._client.wake()

    @property
    def dead(self) -> bool:
        return self._client.dead

    def shutdown(self) -> None:
        self._client.shutdown()

    async def _probed(self, ref: AdapterRef, probe: Probe, lora: LoRARequest | None) -> list[float]:
        params = SamplingParams(
            temperature=1.0,
            seed=0,
            max_tokens=1,
            logprob_token_ids=probe.token_ids,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        output = await self._client.run_beside(
            EngineRequest(prompt_tokens=probe.prompt_tokens, params=params, lora=lora, salt=self._new_salt(ref))
        )
        position = _logprobs(output)[0]
        return [position[token].logprob for token in probe.token_ids]

    def _completion(self, id: str, output: RequestOutput, version: Version, sampling: SamplingConfig) -> Completion:
        answer = output.outputs[0]
        tokens = list(answer.token_ids)
        logp = [position[token].logprob for position, token in zip(_logprobs(output), tokens, strict=True)]
        return Completion(
            id=id,
            tokens=tokens,
            text=cut_at_stop(self._client.decode(tokens), sampling.stop),
            logp=logp,
            finish_reason=FinishReason(answer.finish_reason),
            adapter_version=version.label,
            adapter_digest=version.ref.digest,
        )

    def _new_salt(self, ref: AdapterRef) -> str:
        # A number of its own for each batch: a repeated batch is computed afresh, as the first was.
        return f"{ref.label}:{ref.digest}:{next(self._salts)}"


def _logprobs(output: RequestOutput) -> Any:
    if output.outputs[0].logprobs is None:
        raise EngineError(f"request {output.request_id}: vLLM returned no log-probabilities; see {where_logged()}")
    return output.outputs[0].logprobs


def _lora_request(ref: AdapterRef, lora_id: int) -> LoRARequest:
    return LoRARequest(ref.label, lora_id, _REMOVED_AFTER_LOADING)


def _sampling_params(request: GenerateRequest, sampling: SamplingConfig, stops: Stops) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        seed=request.seed,
        max_tokens=sampling.max_response_tokens,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        stop_token_ids=stops.tokens,
        extra_args={STOP_TEXTS: stops.texts} if stops.texts else None,
    )
