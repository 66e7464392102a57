"""The protocols of OpenRLHF's, vLLM's and DeepSpeed's objects, compared with the installed source.

The source is read, not imported. What hooks add to an object is listed here with the object.
"""

import argparse
import ast
import importlib.util
from pathlib import Path

import pytest
import transformers

from grpo.flags.upstream import trainer_parser
from grpo.stack.upstream import engine, tokenizer, trainer

LAUNCHER = "openrlhf/trainer/ray/launcher.py"
VLLM_ENGINE = "openrlhf/trainer/ray/vllm_engine.py"
VLLM_LINEAR = "vllm/model_executor/layers/linear.py"
ZERO = "deepspeed/runtime/zero/"
TOKENIZER = "transformers/tokenization_utils_base.py"
# The file and the class have other names in transformers 5; PreTrainedTokenizerFast is an alias there.
FAST_TOKENIZER, FAST_CLASS = (
    ("transformers/tokenization_utils_tokenizers.py", "TokenizersBackend")
    if hasattr(transformers, "TokenizersBackend")
    else ("transformers/tokenization_utils_fast.py", "PreTrainedTokenizerFast")
)
# The protocol, what hooks add, the source files with their classes (None: the whole file).
OBJECTS = [
    (trainer.ActorGroup, set(), {LAUNCHER: {"RayActorGroup"}}),
    (trainer.PromptDataset, set(), {"openrlhf/datasets/prompts_dataset.py": {"PromptDataset"}}),
    (trainer.PromptLoader, {"state_dict", "load_state_dict"}, {"torch/utils/data/dataloader.py": {"DataLoader"}}),
    (trainer.Actor, set(), {"openrlhf/models/actor.py": {"Actor"}}),
    (trainer.ModelOutput, {"scores"}, {"transformers/utils/generic.py": {"ModelOutput"}}),
    (trainer.TrainerEngine, set(), {"deepspeed/runtime/engine.py": {"DeepSpeedEngine"}}),
    (trainer.ZeroOptimizer, set(), {ZERO + "stage3.py": None, "deepspeed/runtime/base_optimizer.py": None}),
    (trainer.ZeroParameter, set(), {ZERO + "partition_parameters.py": None}),
    (engine.Engine, set(), {VLLM_ENGINE: {"LLMRayActor"}}),
    (engine.EngineActor, {"_actor_id"}, {VLLM_ENGINE: {"LLMRayActor"}}),
    (engine.LinearLayer, {"lora_A", "lora_B"}, {VLLM_LINEAR: {"LinearBase"}, "torch/nn/modules/module.py": {"Module"}}),
    (engine.Attention, set(), {"vllm/model_executor/models/gpt_oss.py": {"OAIAttention"}}),
    (engine.Streams, set(), {"vllm/v1/engine/async_llm.py": {"AsyncLLM"}}),
    (engine.AsyncLLM, set(), {"vllm/v1/engine/async_llm.py": {"AsyncLLM"}}),
    (tokenizer.Tokenizer, set(), {TOKENIZER: None, FAST_TOKENIZER: None}),
    (tokenizer.FastTokenizer, set(), {FAST_TOKENIZER: {FAST_CLASS}}),
]


def parse_source(path: str) -> ast.Module:
    """Return the syntax tree of a file of an installed package, which is not imported."""
    package, _, rest = path.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec and spec.submodule_search_locations
    return ast.parse((Path(spec.submodule_search_locations[0]) / rest).read_text())


def list_attributes(tree: ast.AST) -> set[str]:
    """Return the names of all attributes that a syntax tree sets or declares, and of its methods."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "self.__dict__":
            names |= {ast.literal_eval(node.slice)} if isinstance(node.slice, ast.Constant) else set()
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SPECIAL_TOKENS_ATTRIBUTES":
            names |= set(ast.literal_eval(node.value))
    return names


def list_declared(protocol: type) -> set[str]:
    """Return the attributes and methods that a protocol's own body declares."""
    methods = {name for name, value in vars(protocol).items() if callable(value) or isinstance(value, staticmethod)}
    return set(protocol.__annotations__) | {name for name in methods if not name.startswith("__")}


@pytest.mark.parametrize(("protocol", "added", "files"), OBJECTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_protocol_has_what_the_source_has_and_what_hooks_add(protocol, added, files):
    installed = set()
    for path, classes in files.items():
        tree = parse_source(path)
        bodies = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in (classes or ())]
        assert classes is None or len(bodies) == len(classes), path
        for body in bodies or [tree]:
            installed |= list_attributes(body)
    assert list_declared(protocol) - added <= installed
    assert added <= list_declared(protocol)
    assert not added & installed


@pytest.fixture(scope="module")
def flags() -> dict[str, argparse.Action]:
    return {action.dest: action for action in trainer_parser()._actions}


def test_every_flag_that_is_read_is_one_of_the_parser(flags):
    folder = Path(engine.__file__).parents[2]
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] == "args":
                assert node.attr in flags, f"{file.relative_to(folder)}, line {node.lineno}: args.{node.attr}"
