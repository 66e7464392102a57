"""Sampling in the engine actor. Imports no DeepSpeed: vLLM's process stays free of it."""

import asyncio
import logging
import multiprocessing
import os
import select
import threading
import weakref
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.model.footprint import DECODED_SEQUENCES
from grpo.rollout.stage import for_sample, read_name
from grpo.stack.upstream import AsyncLLM, Engine

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

logger = logging.getLogger("openrlhf.grpo.engine")

SAMPLED_BY, ROUTING = "sampled_by", "routing"  # of a response
_GRAPH_STEP = 16  # between the sizes of vLLM's graphs; 8 up to 256
_RETENTION = "prefix_cache_retention_interval"  # an argument of vLLM 0.29; None keeps every block
# More than an engine has samples at once. A thread is created only if all others are busy, so there are never more
# threads than rollouts waiting at the same time.
_MOST_THREADS = 1024
_LOOK_MILLISECONDS = 1000  # between two looks for an error that ends no process
_served: "weakref.WeakSet[asyncio.AbstractEventLoop]" = weakref.WeakSet()
_ends: dict[asyncio.Task[Any], asyncio.Future[None]] = {}  # of the rollouts that may still call the engine
_waiting: set[int | None] = set()  # the seeds of the prompts whose answers wait

FedCall = tuple[np.ndarray, np.ndarray]  # the tokens that a call was fed, and the chosen experts


async def answer(
    engine: Engine, params: "SamplingParams", samples: Sequence[Coroutine[Any, Any, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Answer a prompt: first the engine samples all its answers, then they wait for their rewards.

    A prompt that only waits (:func:`list_sampled`) needs the engine no longer, so the engine may get the next policy.
    The responses say which engine sampled them, and which experts it chose if it recorded that.

    Args:
        samples: the executor's calls, one for each rollout, in order.
    """
    loop = asyncio.get_running_loop()
    _provide_reward_threads(loop)
    tasks = [asyncio.create_task(sample) for sample in samples]
    for task in tasks:
        _ends[task] = loop.create_future()
        task.add_done_callback(_end)  # an answer without a reward, or an error
    await asyncio.gather(*(_ends[task] for task in tasks))  # none is popped yet: tasks start at this await
    recorded = await take_routing(engine, params, len(tasks))
    _waiting.add(params.seed)
    try:
        responses = await asyncio.gather(*tasks)
    finally:
        _waiting.discard(params.seed)
    for response in responses:
        response[SAMPLED_BY] = _own_actor()
    return add_routing(responses, recorded)


def _provide_reward_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Let all rollouts that an event loop sends to `asyncio.to_thread` wait for their rewards in parallel.

    OpenRLHF calls the reward by `asyncio.to_thread`. By default, its pool has four threads more than the machine has
    cores, and at most 32. Further rollouts would queue there before the judge's deadline starts to run for them.
    """
    if loop not in _served:
        _served.add(loop)
        loop.set_default_executor(ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="reward"))


def end_sampling() -> None:
    """Note that the answer of the running task is sampled: its reward is next."""
    if task := asyncio.current_task():
        _end(task)


def _end(task: "asyncio.Task[Any]") -> None:
    if end := _ends.pop(task, None):
        end.set_result(None)


def list_sampled() -> list[int | None]:
    """Return the seeds of the prompts whose answers wait for rewards."""
    return list(_waiting)


def ids_only(params: "SamplingParams") -> "SamplingParams":
    """Return the sampling parameters of a call that returns its tokens at the end, and no text.

    By default, vLLM decodes each token and returns all tokens so far in each output. We use neither. Without them, the
    engine's process takes about as long with log-probs as it otherwise takes without them.

    Args:
        params: vLLM's ``SamplingParams``; not modified. With stop strings, the text stays: they are searched in it.
    """
    from vllm.sampling_params import RequestOutputKind

    mine = deepcopy(params)
    mine.detokenize, mine.output_kind = bool(mine.stop), RequestOutputKind.FINAL_ONLY
    return mine


def arguments(workers: int = 1, sequences: int | None = DECODED_SEQUENCES) -> dict[str, Any]:
    """Return engine arguments shared by all engines, in training, evaluations and benchmarks.

    - Streamed calls (:mod:`grpo.rollout.budgeted_rollout`) report 16 tokens at a time: a report costs the process as
      much as a token. An aborted call wastes at most that many tokens, and those in flight.
    - vLLM collects no statistics, since nobody reads them.
    - Layers with a sliding window keep sampled tokens in the prefix cache. By default, vLLM 0.29 keeps only those of
      prompts, and a call that continues a rollout would compute all of it again.
    - On a CPU, prompts are not split into chunks. To undo the draw of a chunked request, vLLM moves its generator's
      offset. CPU generators have none: the engine would die.
    - On a CPU, the cache has blocks of 32 tokens, the smallest that are fast there. vLLM takes 128, and shares only
      whole blocks, so that the rollouts of a short prompt would share nothing.
    - On a CPU, several workers are processes of vLLM's own. OpenRLHF asks for Ray's, which Ray places by their GPUs:
      vLLM 0.15 replaces them by itself, 0.29 raises ValueError.
    - CUDA graphs are captured up to the sequences that the engine decodes. For gpt-oss, vLLM captures 83 graphs, up to
      1,024.

    Args:
        sequences: that an engine decodes at once; None leaves this number, and the graphs, to vLLM.
    """
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform

    mine: dict[str, Any] = {"stream_interval": 16, "disable_log_stats": True}
    if sequences is not None:
        largest = -(-sequences // _GRAPH_STEP) * _GRAPH_STEP  # vLLM cuts other numbers down to the next of its sizes
        mine |= {"max_num_seqs": sequences, "compilation_config": {"max_cudagraph_capture_size": largest}}
    if _RETENTION in signature(AsyncEngineArgs).parameters:
        mine[_RETENTION] = None
    if current_platform.is_cpu():
        mine |= {"enable_chunked_prefill": False, "block_size": 32}
        if workers > 1:
            mine["distributed_executor_backend"] = "mp"
    return mine


def end_with_core(llm: AsyncLLM) -> None:
    """End this process, an engine's actor, as soon as vLLM reports a failure or one of its cores dies.

    vLLM never answers pending calls to the workers of a core that has died. Ray reports the actor's death to every
    caller. Evaluations and tests have engines outside of Ray, which are left alone.
    """
    if not _own_actor():
        return
    deaths = select.poll()
    for pid in find_cores():
        deaths.register(os.pidfd_open(pid), select.POLLIN)  # leaves the exit code to vLLM, which waits as well

    def watch() -> None:
        while not llm.errored and not deaths.poll(_LOOK_MILLISECONDS):
            pass
        logger.error("the core of this engine has died; the engine ends too")
        os._exit(1)  # sys.exit would end only this thread

    threading.Thread(target=watch, name="watch of the core", daemon=True).start()


def find_cores() -> list[int]:
    """Return the ids of the processes in which vLLM computes, children of this one.

    Raises:
        RuntimeError: if there is none.
    """
    # vLLM's name for a child of multiprocessing. The title of the process may be missing.
    pids = [child.pid for child in multiprocessing.active_children() if child.name.startswith("EngineCore")]
    if not pids:
        raise RuntimeError("vLLM started no core that this process knows")
    return [pid for pid in pids if pid is not None]


def _own_actor() -> str | None:
    """Return the id of this process's actor; None outside of Ray."""
    # Outside of Ray, get_runtime_context() would start a cluster.
    import ray  # only here: who starts Ray sets its variables before

    actor: str | None = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    return actor


async def take_routing(engine: Engine, params: "SamplingParams", samples: int) -> dict[str, Any] | None:
    """Take the recorded choices of a prompt's rollouts from the workers, which forget them at a sync.

    Returns:
        as :meth:`grpo.lora.router_capture.RecordingWorker.take_routing`; None if the prompt has no name, or if the
        workers cannot record.
    """
    if read_name(params) is None:
        return None
    names = [read_name(for_sample(params, number)) for number in range(samples)]
    answers = await engine.llm.collective_rpc("take_routing", args=(names,))
    return next((answer for answer in answers if answer is not None), None)


def add_routing(responses: list[dict[str, Any]], recorded: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Add the choices of :func:`take_routing` to the responses to a prompt, in order, and to their branches."""
    if recorded is None:
        return responses
    for response, calls in zip(responses, recorded["calls"], strict=True):
        made = [
            (np.frombuffer(tokens, np.int32), np.frombuffer(choices, np.uint8).reshape(-1, *recorded["shape"]))
            for tokens, choices in calls
        ]
        for sample in (response, *response.get("branches", ())):
            sample[ROUTING] = assemble_choices(sample["observation_tokens"], made, recorded["shape"])
    return responses


def assemble_choices(tokens: Sequence[int], calls: Sequence[FedCall], shape: Sequence[int]) -> np.ndarray:
    """Return the choices for the tokens of a rollout, uint8 ``[S, layers, k]``; 0 where no call computed them.

    All calls of a rollout carry its name: turns, and the answer after a cut thought. A position's choice depends only
    on the tokens up to it, so a call's choices hold for every rollout that begins with the same tokens. The first call
    that computed a position counts: a token was sampled from it, and later calls only read the cache or compute it
    again.

    Args:
        calls: the tokens that each call was fed, and the choices for them.
        shape: layers, and experts a token.
    """
    wanted = np.asarray(tokens)
    routing, known = np.zeros((len(wanted), *shape), np.uint8), np.zeros(len(wanted), bool)
    for fed, choices in calls:
        common = min(len(fed), len(wanted))
        differing = np.flatnonzero(fed[:common] != wanted[:common])
        end = differing[0] if len(differing) else common
        new = ~known[:end]
        routing[:end][new] = choices[:end][new]  # a slice is a view, so this writes to routing
        known[:end] = True
    return routing
