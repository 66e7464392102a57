"""Workers of the rung "engine speed" with vLLM's own dummy weights."""

from vllm.model_executor.model_loader import dummy_loader

_theirs = dummy_loader.initialize_dummy_weights

from scripts.gpu_check.speed_worker import SpeedWorker  # noqa: E402

dummy_loader.initialize_dummy_weights = _theirs


class PlainWorker(SpeedWorker):
    """vLLM's ``worker_extension_cls``."""
