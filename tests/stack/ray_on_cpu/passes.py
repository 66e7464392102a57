"""vLLM's passes over a compiled graph, without the one that looks for operators of GPU builds."""

import importlib
from typing import Any

from torch import fx
from vllm.platforms.interface import Platform

_module, _, _name = Platform.get_pass_manager_cls().rpartition(".")  # vLLM 0.29 has moved it
_manager: Any = importlib.import_module(_module)


class Unchanged(_manager.InductorPass):
    def __call__(self, graph: fx.Graph) -> None:
        pass


class Passes(getattr(_manager, _name)):
    """The platform sets it in place of vLLM's own."""

    def configure(self, config) -> None:
        super().configure(config)
        self.fix_functionalization = Unchanged()
