"""Environments of the verifiers package, if it is installed, as in a stage of scripts/test.sh.

Wordle comes with the package. Its word list is data of NLTK, which is not installed; a short one stands in.
"""

import asyncio
import functools
import importlib.util
import json
import math
import signal
import sys
import threading
from dataclasses import replace

import pytest

from data import verifiers as data_verifiers
from grpo.environments import environment
from grpo.environments.conversation import hold_conversation
from grpo.environments.environment import SetupError, load
from grpo.rollout.harmony import template_for
from grpo.rollout.multi_turn import EnginePolicy, roll_out
from grpo.stack.checkout import CHECKOUT
from tests.grpo.environments.scripted import LIMITS, ScriptedEngine, Spoken, make_call, make_params
from tests.grpo.rollout.tokenizer import TOKENIZER

pytestmark = pytest.mark.timeout(600)  # importing the package takes minutes beside the real stack
needs_package = pytest.mark.skipif(not importlib.util.find_spec("verifiers"), reason="verifiers is not installed")

WORDS = ("apple", "table", "river", "house", "stone")

ADDING = """
import threading
from types import SimpleNamespace

import verifiers as vf
from datasets import Dataset

BEAT, ENDED = threading.Event(), []


def add(a: int, b: int) -> int:
    "Add two numbers."
    if a == 99:
        raise ConnectionError("the adder is gone")
    if b == 50:  # block this event loop until the other one beats
        BEAT.clear()
        if not BEAT.wait(400):
            raise ConnectionError("the other one is blocked too")
    return a + b


class Adding(vf.ToolEnv):
    @vf.cleanup
    async def note(self, state):
        ENDED.append(state.get("stop_condition"))


def right(completion, answer):
    return float(answer in completion[-1].content)


def load_environment(kind="tools", rubric=None):
    rows = Dataset.from_list([{"question": f"What is {n} + 2?", "answer": str(n + 2)} for n in range(8)])
    rubric = rubric or vf.Rubric(funcs=[right])
    if kind == "tools":
        return Adding(tools=[add], stop_errors=[ConnectionError], dataset=rows, rubric=rubric)
    if kind == "together":
        return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[best]))
    if kind == "text":
        return vf.SingleTurnEnv(dataset=rows, rubric=rubric, message_type="completion")
    return SimpleNamespace(env_id="", env_args={})  # as of verifiers.v1


def best(states):
    return [1.0 for _ in states]
"""


@pytest.fixture
def adding_environment(tmp_path, monkeypatch):
    """An installed environment of the hub's format."""
    (tmp_path / "adding_up.py").write_text(ADDING)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield load("verifiers:adding-up")
    sys.modules.pop("adding_up")


@pytest.fixture(scope="module")
def wordle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nltk")
    (folder / "corpora/words").mkdir(parents=True)
    tagger = folder / "taggers/averaged_perceptron_tagger_eng"
    tagger.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (folder / "corpora/words" / name).write_text("\n".join(WORDS))
    for part, value in (("weights", {}), ("tagdict", dict.fromkeys(WORDS, "NN")), ("classes", ["NN"])):
        (tagger / f"averaged_perceptron_tagger_eng.{part}.json").write_text(json.dumps(value))
    import nltk

    nltk.data.path.insert(0, str(folder))
    file = folder / "wordle.py"
    file.write_text(
        "import verifiers as vf\n"
        "from grpo.environments.verifiers_environment import adapt_environment\n"
        "parser = vf.XMLParser(fields=['guess'], answer_field='guess')\n"
        "def won(completion, answer):\n"
        "    return float(parser.parse_answer(completion) == f'[{answer}]')\n"
        "rubric = vf.Rubric(funcs=[won], parser=parser)\n"
        "Environment = adapt_environment(vf.TextArenaEnv(\n"
        "    'Wordle-v0', num_train_examples=4, num_eval_examples=2, parser=parser, rubric=rubric))\n"
    )
    yield file
    nltk.data.path.remove(str(folder))


def make_label(kind, number=0):
    from grpo.environments.verifiers_environment import rows

    return json.dumps(rows(kind)[0][number])


def make_turn(arguments):
    """The tokens of a call, without what ends the turn."""
    return f"<|channel|>commentary to=functions.add json<|message|>{json.dumps(arguments)}"


def make_answer(text):
    return f"<|channel|>final<|message|>{text}<|return|>"


def roll_out_script(kind, script, label=None, **limits):
    template = template_for(TOKENIZER)
    engine = ScriptedEngine(template.codec, script)
    policy = EnginePolicy(template, engine, make_params(limits.pop("max_tokens", 200)), 4000)
    make = functools.partial(kind, "", label or make_label(kind))
    return *asyncio.run(roll_out(make, policy, replace(LIMITS, **limits), 4)), engine


def test_the_remedy_names_a_file_that_pins_the_package(monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="verifiers") as raised:
        load("verifiers:wordle")
    file = raised.value.problem.remedy.split()[-1]
    assert "\nverifiers==" in (CHECKOUT / file).read_text()


@needs_package
def test_a_game_that_the_package_ships_is_trained_on_its_sampled_tokens(wordle):
    kind = load(str(wordle))
    answer = json.loads(make_label(kind))["answer"]
    wrong = next(word for word in WORDS if word != answer)
    script = [make_answer(f"<guess>[{word}]</guess>") for word in (wrong, answer)]
    outcome, response, engine = roll_out_script(kind, script)
    assert outcome.ending == "done" and outcome.turns == 2
    assert response["reward"] == response["scores"] == response["extra_logs"]["rubric.won"] == 1.0
    assert response["extra_logs"]["rubric.num_turns"] == 2 and response["extra_logs"]["token_mismatch"] == 0
    (_, first), (prompt, second) = engine.calls
    rows = [*response["branches"], response]
    sampled = [row["observation_tokens"][start:end] for row in rows for start, end in row["action_ranges"]]
    assert sampled == [first, second]
    assert response["observation_tokens"] == prompt + second
    text = TOKENIZER.decode(prompt)
    assert "A secret 5-letter word has been chosen" in text and " ".join(wrong.upper()) in text


@needs_package
def test_tools_are_the_environments_own_and_both_sides_see_the_same_calls(adding_environment):
    calls = make_turn({"a": 0, "b": 2}) + "<|end|><|start|>assistant" + make_turn({"a": 0}) + "<|call|>"
    outcome, response, engine = roll_out_script(adding_environment, [calls, make_answer("It is 2.")])
    assert [message["role"] for message in outcome.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert outcome.messages[2]["content"] == "2" and "missing" in outcome.messages[3]["content"]
    assert (outcome.ending, response["reward"], outcome.calls) == ("done", 1.0, 2)
    assert response["extra_logs"]["rubric.add_calls"] == 2 and not response["branches"]
    assert "Add two numbers." in TOKENIZER.decode(engine.calls[0][0])


@needs_package
@pytest.mark.parametrize(
    ("said", "limits", "ending", "stopped_by"),
    [
        (make_turn({"a": 0, "b": 2}) + "<|call|>", {"turns": 1}, "turns", "prompt_too_long"),
        (make_answer("I am still thinking about it."), {"max_tokens": 5}, "length", "no_tools_called"),
    ],
)
def test_a_limit_of_the_run_ends_the_environments_own_loop(adding_environment, said, limits, ending, stopped_by):
    outcome, response, _ = roll_out_script(adding_environment, [said], **limits)
    assert outcome.ending == ending and response["reward"] == 0.0
    assert [stopped_by] == sys.modules["adding_up"].ENDED


@needs_package
def test_an_error_of_the_environment_leaves_the_rollout_without_a_reward(adding_environment):
    outcome, response, _ = roll_out_script(adding_environment, [make_turn({"a": 99, "b": 2}) + "<|call|>"])
    assert outcome.ending == "error" and "ToolCallError" in outcome.fault
    assert math.isnan(response["reward"]) and sys.modules["adding_up"].ENDED == ["has_error"]


@needs_package
def test_a_tool_that_blocks_does_not_hold_up_the_engines_event_loop(adding_environment):
    policy = Spoken({"tool_calls": [make_call("add", {"a": 0, "b": 50})]}, {"content": "It is 2."})
    made = adding_environment("", make_label(adding_environment))

    async def run():
        async def beat():
            while True:
                sys.modules["adding_up"].BEAT.set()
                await asyncio.sleep(0.01)

        beating = asyncio.create_task(beat())
        outcome = await hold_conversation(made, policy, LIMITS)
        beating.cancel()
        return outcome

    assert asyncio.run(run()).ending == "done"


@needs_package
def test_time_that_runs_out_cancels_the_environment_and_scores_what_there_is(adding_environment):
    made = adding_environment("", make_label(adding_environment))

    async def run():
        outcome = await hold_conversation(
            made, Spoken({"content": "It is 2."}, seconds=30), replace(LIMITS, seconds=0.3)
        )
        return outcome, await made.score(outcome.messages, outcome.ending)

    outcome, score = asyncio.run(run())
    assert outcome.ending == "time" and len(sys.modules["adding_up"].ENDED) == 1
    assert score.reward == 0.0


@needs_package
@pytest.mark.parametrize(
    ("kind", "reason"),
    [("together", "together"), ("text", "text"), ("v1", "not a verifiers.Environment")],
)
def test_environments_of_other_kinds_are_refused_by_name(adding_environment, kind, reason):
    from grpo.environments.verifiers_environment import environment_of

    with pytest.raises(SetupError, match=reason):
        environment_of("adding-up", kind=kind)


@needs_package
def test_an_environment_that_is_not_installed_is_refused():
    with pytest.raises(SetupError, match="no-such-one"):
        load("verifiers:no-such-one")


@needs_package
def test_engines_load_it_off_the_main_thread_and_ctrl_c_stays_ours(adding_environment):
    before, loaded = signal.getsignal(signal.SIGINT), []
    load("verifiers:adding-up")
    thread = threading.Thread(target=lambda: loaded.append(load("verifiers:adding-up")))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before and loaded


@needs_package
def test_its_rows_become_data_files(adding_environment, tmp_path, capsys):
    name = ["--environment", "verifiers:adding-up", "--out", str(tmp_path)]
    assert data_verifiers.main([*name, "--train", "3", "--eval", "2"]) == 0
    lines = {split: [json.loads(line) for line in (tmp_path / f"{split}.jsonl").open()] for split in ("train", "eval")}
    assert [len(part) for part in lines.values()] == [3, 2]
    assert len({line["prompt"] for part in lines.values() for line in part}) == 5
    answers = [json.loads(line["label"])["answer"] for part in lines.values() for line in part]
    assert answers == ["2", "3", "4", "8", "9"]
    outcome, response, _ = roll_out_script(
        adding_environment, [make_answer("It is 8.")], label=lines["eval"][0]["label"]
    )
    assert outcome.messages[0]["content"] == "What is 6 + 2?" and response["reward"] == 1.0
    assert data_verifiers.main([*name[:-1], str(tmp_path), "--eval", "8"]) == 2
    assert "lower --eval" in capsys.readouterr().err
