"""Overlap of train and eval, and prompt lengths under a tokenizer."""

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from data.checks import check_lengths, check_overlap, prompt_lengths
from data.problems import Problem, merge_repeats
from grpo.stack.problem import UserError
from scripts.tiny_model.tokenizer import write_tokenizer
from tests.data.conftest import make_words


def make_problem(text: str, split: str, **others) -> Problem:
    return Problem(text, "7", others.pop("datasource", "math"), split, location=f"f, {text[:8]}", **others)


def test_an_overlap_is_refused_or_left_out_of_train() -> None:
    leak = make_problem(make_words(1), "train")
    reworded = make_problem(make_words(2) + " again", "train")
    others = [make_problem(make_words(i), "train") for i in range(10, 14)]
    held_out = [make_problem(make_words(i), "eval") for i in (1, 2, 3)]
    with pytest.raises(UserError, match=r"2 problems of train are also in eval(.|\n)*--decontaminate") as refused:
        check_overlap([leak, *others, reworded, *held_out], False)
    for one in (leak, reworded):
        assert f"{one.id} ({one.location})" in str(refused.value)
    kept, lines, report = check_overlap([leak, *others, reworded, *held_out], True)
    assert kept == others + held_out and len(lines) == 2
    assert report == {"near_duplicates": [], "variants": []}


@pytest.mark.parametrize(
    "other",
    [
        lambda text: unicodedata.normalize("NFD", text),
        lambda text: text.replace("7", "\uff17"),
        lambda text: text.replace(" ", "\u200b \u00a0"),
        str.upper,
    ],
)
def test_the_same_text_in_another_unicode_form_is_an_overlap_and_a_repetition(other) -> None:
    text = "Ren\u00e9 a n\u00e9 7 ans"
    same = other(text)
    assert same != text
    with pytest.raises(UserError, match="1 problems of train are also in eval"):
        check_overlap([make_problem(text, "train"), make_problem(same, "eval")], False)
    kept, repeats, bad = merge_repeats([make_problem(text, "train"), make_problem(same, "train")])
    assert len(kept) == len(repeats) == 1 and not bad


def test_a_power_is_not_a_number_with_more_digits() -> None:
    assert len(merge_repeats([make_problem("What is 3\u00b2?", "train"), make_problem("What is 32?", "train")])[0]) == 2


def test_same_contest_place_in_both_splits_is_an_overlap_despite_different_wording() -> None:
    columns = {"datasource": "aime", "paper": (2022, 1, 3)}
    with pytest.raises(UserError, match="aime-2022-1-3"):
        check_overlap(
            [make_problem(make_words(1), "train", **columns), make_problem(make_words(2), "eval", **columns)], False
        )


def test_within_a_split_near_duplicates_and_across_variants_are_reported() -> None:
    text = f"Take 7 {make_words(1)}"
    first, again = make_problem(text, "train"), make_problem(text + " now", "train")
    variant = make_problem(text.replace("7", "8"), "eval")
    kept, lines, report = check_overlap([first, again, variant], False)
    assert kept == [first, again, variant] and not lines
    assert [(one["split"], one["ids"]) for one in report["near_duplicates"]] == [("train", [first.id, again.id])]
    assert report["variants"] == [{"train": 2, "eval": 1, "ids": [first.id, again.id, variant.id]}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return str(folder)


def test_lengths_match_the_tokens_sent_to_the_engine(tokenizer: str) -> None:
    from transformers import AutoTokenizer

    prompts = ["What is 3 plus 4?", "a", make_words(1)]
    direct = AutoTokenizer.from_pretrained(tokenizer)
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    expected = [len(direct.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)) for chat in chats]
    assert prompt_lengths(tokenizer, prompts) == expected
    assert len(set(expected)) == 3


def test_long_prompts_are_refused_or_left_out(tokenizer: str) -> None:
    problems = [make_problem("a" * n, split) for split in ("train", "eval") for n in (2, 40, 400)]
    problems[3:] = [replace(one, text=one.text.replace("a", "b")) for one in problems[3:]]
    lengths = prompt_lengths(tokenizer, [one.prompt for one in problems])
    kept, lines, report = check_lengths(problems, tokenizer, None, False)
    assert kept == problems and not lines
    assert report["train"] == {"max": max(lengths[:3]), "p99": max(lengths[:3])} and report["limit"] is None
    limit = sorted(lengths[:3])[1]
    with pytest.raises(UserError, match=rf"2 prompts are too long:(.|\n)*more than {limit}(.|\n)*--drop-long"):
        check_lengths(problems, tokenizer, limit, False)
    kept, lines, report = check_lengths(problems, tokenizer, limit, True)
    assert kept == [one for one, length in zip(problems, lengths, strict=True) if length <= limit]
    assert len(lines) == 2 and report["train"]["max"] == limit


def test_the_99th_percentile(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [make_problem(f"{i}", "train") for i in range(1, 201)]
    monkeypatch.setattr("data.checks.prompt_lengths", lambda name, prompts: list(range(1, 201)))
    assert check_lengths(problems, "folder/name", None, False)[2]["train"] == {"max": 200, "p99": 198}


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be loaded"):
        prompt_lengths(str(tmp_path), ["a"])
