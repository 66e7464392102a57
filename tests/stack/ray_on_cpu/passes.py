"""vLLM's passes over a compiled graph, without the one that looks for operators of GPU builds."""

from torch import fx
from vllm.compilation.inductor_pass import InductorPass
from vllm.compilation.pass_manager import PostGradPassManager


class Unchanged(InductorPass):
    def __call__(self, graph: fx.Graph) -> None:
        pass


class Passes(PostGradPassManager):
    """The platform sets it in place of vLLM's own."""

    def configure(self, config) -> None:
        super().configure(config)
        self.fix_functionalization = Unchanged()
