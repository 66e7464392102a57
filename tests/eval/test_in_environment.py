"""Conversations of an evaluation: the samples and numbers of training, in the records of an evaluation."""

import asyncio
import json
from argparse import Namespace
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from eval.harness import prepare
from eval.problems import EvalProblem, derive_seed
from grpo.environments.environment import SingleAnswer
from grpo.rollout.harmony import SAMPLED, template_for
from grpo.rollout.multi_turn import EnginePolicy, roll_out
from tests.grpo.environments.scripted import LIMITS, Library, ScriptedEngine, make_params
from tests.grpo.rollout.tokenizer import TOKENIZER

PROBLEM = EvalProblem("p", "where?", "42", "made")
SEARCH = '<|channel|>commentary to=functions.search json<|message|>{"query": "x"}<|call|>'
FINAL = "<|channel|>final<|message|>{}<|return|>"
ANSWER = FINAL.format("42")
TEMPLATE = template_for(TOKENIZER)


def hold_turns(*turns: str, kind=Library, number: int = 0) -> tuple[dict, ScriptedEngine]:
    options = Namespace(temperature=1.0, top_p=1.0, max_tokens=200, max_model_len=4000, seed=5, **asdict(LIMITS))
    hold = prepare(kind, options, SimpleNamespace(tokenizer=TOKENIZER, variables={}), None)
    engine = ScriptedEngine(TEMPLATE.codec, list(turns))
    return asyncio.run(hold(engine, PROBLEM, number)), engine


def test_tokens_and_numbers_are_those_of_a_training_rollout():
    record, engine = hold_turns(SEARCH, ANSWER, number=3)
    again = ScriptedEngine(TEMPLATE.codec, [SEARCH, ANSWER])
    policy = EnginePolicy(TEMPLATE, again, make_params(seed=derive_seed(5, "p", 3)), 4000)
    outcome, response = asyncio.run(roll_out(lambda: Library("where?", "42"), policy, LIMITS, 4))
    assert engine.calls == again.calls and [one.seed for one in engine.params] == [one.seed for one in again.params]
    said = [{key: value for key, value in message.items() if key != SAMPLED} for message in outcome.messages]
    assert record["messages"] == said and record["reward"] == response["reward"] == 1.0
    assert record["ending"] == "done" and record["tool_calls"] == 1 and record["token_mismatch"] == 0
    assert record["response_length"] == sum(len(tokens) for _, tokens in engine.calls)
    assert record["seed"] == derive_seed(5, "p", 3) and json.dumps(record)


def test_the_conversation_is_kept_as_text():
    record, _ = hold_turns(SEARCH, ANSWER)
    (text,) = record["conversation"]
    assert text.count("to=functions.search") == 1 and "there x" in text and text.endswith(ANSWER)


@pytest.mark.parametrize(("answer", "score"), [("\\boxed{42}", 1.0), ("\\boxed{41}", 0.0)])
def test_single_answers_are_graded(answer, score):
    assert hold_turns(FINAL.format(answer), kind=SingleAnswer)[0]["score"] == score
