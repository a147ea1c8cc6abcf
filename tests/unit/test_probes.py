"""What the gate catches, and how suites are refused."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Answer, ScriptedServer, chat

from bringup import artifact, probes
from bringup.probes.judging import degeneration
from bringup.probes.patterns import trouble
from documents import checked

PROJECT = Path(__file__).resolve().parents[2]
SUITES = PROJECT / "resources" / "probes"
STRICT = probes.Thresholds()


def question(answer: str = "391", rule: str = "number", id: str = "q") -> probes.Question:
    return probes.Question(id, "s", "What is 17*23?", answer, rule, 64, ("A", "B", "C"))  # type: ignore[arg-type]


def answered(answer: Answer, asked: probes.Question | None = None) -> probes.Item:
    with ScriptedServer(lambda path, body: answer) as server:
        return probes.ask(server.url, [asked or question()], timeout_s=5)[0]


# --- the suites that ship ---


def test_arithmetic_answers_are_right_when_computed_again() -> None:
    questions = probes.load(["arithmetic"], SUITES)
    computed = 0
    for each in questions:
        if sum_ := re.fullmatch(r"What is (\d+)([*+-])(\d+)\? Answer with .*", each.prompt):
            a, b = int(sum_[1]), int(sum_[3])
            right = {"*": a * b, "+": a + b, "-": a - b}[sum_[2]]
            assert each.answer == str(right), each.id
            computed += 1
    assert questions[0].prompt == "What is 17*23? Answer with the number only."
    assert computed >= 25
    assert len(questions) == computed + 2  # and two capitals


ALL_SUITES = sorted(path.stem for path in SUITES.glob("*.yaml"))


@pytest.mark.parametrize("suite", ALL_SUITES)
def test_the_expected_answer_of_every_question_is_judged_right(suite: str) -> None:
    """What a perfect server would say, for patterns one text that each is meant to match."""
    said = {
        "moon": "Neil A. Armstrong",
        "south-africa": "Nelson Mandela",
        "spanish": "París",
        "comprehension": str([n * n for n in range(5)]),
        "sort": str(sorted("tensor")),
    }
    questions = probes.load([suite], SUITES)
    answers = {each.prompt: said.get(each.id, each.answer) for each in questions}
    assert len({each.id for each in questions}) == len(answers)

    def perfect(path: str, body: dict[str, Any]) -> Answer:
        return chat(answers[body["messages"][0]["content"]])

    with ScriptedServer(perfect) as server:
        items = probes.ask(server.url, questions, concurrency=4)
    assert [item for item in items if item.outcome != "right"] == []


def test_what_the_programs_print_is_what_they_print() -> None:
    for each in probes.load(["code"], SUITES):
        program = re.search(r"program print\? (print\(.*\)) Answer", each.prompt)
        assert program
        printed = subprocess.run(
            [sys.executable, "-c", program[1]], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert re.fullmatch(each.answer, printed), each.id


def test_counting_answers_are_right_when_counted_again() -> None:
    answers = {
        each.id: each.answer
        for each in probes.load(["counting", "short"], SUITES)
        if each.id.startswith("count-")
    }
    counted = {
        "count-to-40": range(1, 41),
        "count-to-150": range(1, 151),
        "count-down-from-60": range(60, 0, -1),
        "count-by-seven": range(7, 351, 7),
        "count-to-20": range(1, 21),
        "count-down-from-20": range(20, 0, -1),
        "count-by-twelve": range(12, 241, 12),
    }
    assert answers == {id: ", ".join(map(str, numbers)) for id, numbers in counted.items()}


def test_copying_asks_for_what_it_expects() -> None:
    copying = [
        each
        for each in probes.load(["copying", "short"], SUITES)
        if each.prompt.startswith("Copy the following text exactly")
    ]
    assert len(copying) == 3 + 3
    for each in copying:
        assert each.prompt.endswith(f"write nothing else: {each.answer}")


def test_needles_stand_in_the_haystack() -> None:
    needles = [
        each for each in probes.load(["needle", "short"], SUITES) if "Record 1:" in each.prompt
    ]
    assert len(needles) == 6 + 3
    for each in needles:
        (number,) = re.findall(r"record (\d+)", each.prompt)
        (field,) = re.findall(r"weight|shelf|box", each.prompt.rpartition("\n")[2])
        record = re.findall(rf"^Record {number}: .*{field} (\d+)", each.prompt, re.M)
        assert record == [each.answer], each.id


def test_repeated_questions_are_asked_as_often_as_they_say() -> None:
    ids = [each.id for each in probes.load(["repeated"], SUITES)]
    assert ids == ["product-17-23"] * 8 + ["product-48-76"] * 8
    assert 48 * 76 == 3648


def test_a_question_longer_than_the_context_is_named() -> None:
    name, needed = probes.longest(probes.load(["arithmetic", "needle"], SUITES))
    assert name == "suite needle: 400-records-start"
    assert 4096 < needed < 32768
    assert probes.beyond_context(name, needed, 32768) is None
    assert probes.beyond_context(name, needed, None) is None
    said = probes.beyond_context(name, needed, 4096)
    assert said and said.startswith("suite needle: 400-records-start needs about")
    assert "context has 4096" in said


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 131072}}, 131072),
        ({}, None),
        ({"max_position_embeddings": "many"}, None),
    ],
)
def test_the_models_context_is_what_its_config_says(
    config: dict[str, Any], context: int | None
) -> None:
    assert probes.context_of(config) == context


def test_short_takes_turns_between_suites() -> None:
    def make(suite: str, count: int) -> list[probes.Question]:
        return [probes.Question(f"{suite}{n}", suite, "?", "1", "number", 8) for n in range(count)]

    chosen = probes.short(make("a", 5) + make("b", 2), 4)
    assert [each.id for each in chosen] == ["a0", "b0", "a1", "b1"]


# --- outcomes ---


@pytest.mark.parametrize(
    ("answer", "outcome", "sign"),
    [
        (chat("391"), "right", None),
        (chat("**391**."), "right", None),
        (chat("17*23 = 391"), "right", None),
        (chat("It is 391.0"), "right", None),
        (chat(None, reasoning="so it is 391"), "right", None),
        (chat("  ", reasoning="391"), "right", None),
        (chat("390"), "wrong", None),
        (chat("391 or 392"), "wrong", None),
        (chat("-391"), "wrong", None),
        (chat("I cannot say"), "wrong", None),
        (chat(""), "no-answer", "empty"),
        (chat(None), "no-answer", "empty"),
        (chat("Let me think: 17*20 is", finish="length"), "no-answer", "cut-short"),
        (chat("", tokens=64, finish="length"), "degenerate", "special-tokens"),
        (chat("........"), "degenerate", "repeated-character"),
        (chat("391" + "#" * 40, finish="length"), "degenerate", "repeated-character"),
        (chat("!!!!!!!!"), "degenerate", "token-0"),
        (chat("391" + "!" * 40, finish="length"), "degenerate", "token-0"),
        (chat("391", logprobs=[-0.1, -0.2]), "right", None),
        (chat("391", logprobs=[-0.1, None]), "degenerate", "nan-logprob"),
        (chat("391", logprobs=[math.nan]), "degenerate", "nan-logprob"),
        (chat("391", logprobs=[-math.inf]), "degenerate", "nan-logprob"),
        (
            chat("the the the the the the the the the", finish="length"),
            "degenerate",
            "repeated-token",
        ),
        (chat("391391391391391391391391"), "degenerate", "repeated-token"),
        (chat("3\ufffd91"), "degenerate", "replacement-character"),
        (chat("3\x00"), "degenerate", "control-character"),
        (chat("答案 ответ 답 คำตอบ"), "degenerate", "script-mixing"),
        (chat("答案是三百九十"), "wrong", None),
        (chat("I'm sorry, but I can't help with that."), "wrong", "refusal"),
        (Answer({"error": {"message": "boom"}}), "error", "error-in-200"),
        (Answer({"object": "error", "message": "boom"}), "error", "error-in-200"),
        (Answer({"choices": []}), "error", "no-choice"),
        (Answer("<html>busy</html>"), "error", "no-json"),
        (Answer({"error": "x"}, status=500), "error", "http-500"),
        (Answer(drop=True), "error", "no-reply"),
    ],
)
def test_outcome(answer: Answer, outcome: str, sign: str | None) -> None:
    item = answered(answer)
    assert (item.outcome, item.sign) == (outcome, sign)


def test_a_server_that_refuses_log_probabilities_is_asked_without_them() -> None:
    def script(path: str, body: dict[str, Any]) -> Answer:
        if body.get("logprobs"):
            return Answer({"message": "logprobs are not supported"}, status=400)
        return chat("391")

    with ScriptedServer(script) as server:
        assert probes.ask(server.url, [question()])[0].outcome == "right"


def test_where_the_answer_stood_is_said() -> None:
    assert answered(chat("391", reasoning="hm")).where == "content"
    assert answered(chat(None, reasoning="391")).where == "reasoning_content"
    assert answered(chat("")).where == "none"


def test_an_answer_cut_in_the_middle_of_a_character_is_cut_not_broken() -> None:
    assert answered(chat("das ist \ufffd", finish="length")).sign == "cut-short"


@pytest.mark.parametrize(
    ("rule", "answer", "text", "right"),
    [
        ("exact", "Paris", "paris.", True),
        ("exact", "Paris", "Paris, France", False),
        ("number", "-51", "28-79 = \N{MINUS SIGN}51", True),
        ("number", "-51", "51", False),
        ("number", "61", "84-23", False),
        ("number", "5580", "5,580", True),
        ("choice", "B", "A is tempting, but B", True),
        ("choice", "B", "Both are wrong", False),
        ("regex", r"\bBlue\b", "It is Blue today", True),
    ],
)
def test_answer_rules(rule: str, answer: str, text: str, right: bool) -> None:
    assert (answered(chat(text), question(answer, rule)).outcome == "right") is right


def test_the_place_of_the_first_error_is_said() -> None:
    counting = question(", ".join(map(str, range(1, 41))), "exact")
    said = answered(chat(", ".join(map(str, [*range(1, 12), *range(13, 41)]))), counting)
    assert said.outcome == "wrong"
    assert (said.message or "").startswith("differs from character 37 of 149 on: expected '2, 13")


def test_silence_is_an_error_item() -> None:
    release = threading.Event()
    with ScriptedServer(lambda path, body: Answer(wait=release, drop=True)) as server:
        item = probes.ask(server.url, [question()], timeout_s=0.2)[0]
        release.set()
    assert (item.outcome, item.sign) == ("error", "no-reply")
    assert "0.2 s" in (item.message or "")


def test_questions_are_greedy_bounded_and_in_order() -> None:
    with ScriptedServer(lambda path, body: chat("391")) as server:
        items = probes.ask(server.url, [question(id=str(n)) for n in range(6)], concurrency=3)
    assert [item.id for item in items] == list("012345")
    assert {path for path, _ in server.requests} == {"/v1/chat/completions"}
    assert all(body["temperature"] == 0 and body["max_tokens"] == 64 for _, body in server.requests)


def test_thinking_is_switched_off_or_as_the_config_says() -> None:
    budget = {**probes.NO_THINKING, "reasoning_effort": "low"}
    with ScriptedServer(lambda path, body: chat("391")) as server:
        probes.ask(server.url, [question()])
        probes.ask(server.url, [question()], template=budget)
        probes.ask_within_batch(server.url, [question()], concurrency=1, template=budget)
        sent = [body["chat_template_kwargs"] for _, body in server.requests]
    assert sent == [{"enable_thinking": False, "thinking": False}, budget, budget]


def test_within_a_batch_fillers_keep_it_full() -> None:
    full = threading.Barrier(8)

    def script(path: str, body: dict[str, object]) -> Answer:
        if not server_is_full.is_set():
            full.wait(timeout=10)  # all eight are there at once, or the test fails
            server_is_full.set()
        return chat("391")

    server_is_full = threading.Event()
    with ScriptedServer(script) as server:
        items = probes.ask_within_batch(server.url, [question()] * 4, concurrency=8, timeout_s=20)
    assert [item.outcome for item in items] == ["right"] * 4
    assert server.most_at_once == 8


def test_ordinary_texts_are_not_degenerate() -> None:
    for text in ("Hello!", "aa", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10", "| --- | --- |", "ha ha ha"):
        assert degeneration(text) is None, text


# --- the verdict ---


def items(**outcomes: str) -> list[probes.Item]:
    return [
        probes.Item(id, "s", "?", "1", "", "none", outcome, None, None, None, 0.0)  # type: ignore[arg-type]
        for id, outcome in outcomes.items()
    ]


def many(right: int, other: int, outcome: str = "wrong") -> list[probes.Item]:
    return items(
        **{f"r{n}": "right" for n in range(right)}, **{f"w{n}": outcome for n in range(other)}
    )


LENIENT = probes.Thresholds(pass_share=0.9, degraded_share=0.5)


@pytest.mark.parametrize(
    ("asked", "thresholds", "gate"),
    [
        (many(20, 0), STRICT, "pass"),
        (many(19, 1), STRICT, "degraded"),
        (many(17, 3), STRICT, "wrong"),
        (many(0, 20), STRICT, "wrong"),
        (many(0, 20, "degenerate"), STRICT, "wrong"),
        (many(0, 20, "error"), STRICT, "error"),
        (many(0, 20, "no-answer"), STRICT, "no-answer"),
        (many(10, 10, "no-answer"), STRICT, "no-answer"),
        (many(19, 1, "no-answer"), STRICT, "degraded"),
        (many(10, 5) + many(0, 5, "no-answer"), STRICT, "wrong"),
        (many(19, 1, "error"), STRICT, "error"),
        (many(18, 2), LENIENT, "pass"),
        (many(19, 1, "degenerate"), LENIENT, "degraded"),
        (many(19, 1, "error"), LENIENT, "degraded"),
        (many(10, 10), LENIENT, "degraded"),
        (many(9, 11), LENIENT, "wrong"),
    ],
)
def test_gate(asked: list[probes.Item], thresholds: probes.Thresholds, gate: str) -> None:
    assert probes.gate(asked, thresholds).gate == gate


def test_an_answer_that_comes_and_goes_is_flaky() -> None:
    twice = items(a="right", b="right") + items(a="right", b="right") + items(a="wrong", b="right")
    assert probes.gate(twice, probes.Thresholds(0.8, 0.5)).gate == "flaky"


def test_the_worst_phase_decides_and_change_between_phases_is_flaky() -> None:
    good, bad, one_off = many(20, 0), items(**{f"r{n}": "wrong" for n in range(20)}), many(18, 0)
    assert probes.across({"before": good, "during": bad, "after": good}, STRICT).gate == "wrong"
    one_off += items(r18="right", r19="wrong")
    assert probes.across({"before": good, "during": one_off}, STRICT).gate == "flaky"
    assert probes.across({"before": good, "after": good}, STRICT).gate == "pass"


def test_a_gate_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one question"):
        probes.gate([], STRICT)


def test_thresholds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="degraded_share <= pass_share"):
        probes.Thresholds(pass_share=0.5, degraded_share=0.9)


@pytest.mark.parametrize(
    ("asked", "status", "gate"),
    [
        (many(9, 0), "ok", "pass"),
        (many(0, 9), "wrong", "wrong"),
        (many(0, 9, "no-answer"), "wrong", "no-answer"),
        (many(0, 9, "error"), "failed", "error"),
    ],
)
def test_document_follows_its_schema_and_shows_what_decided(
    asked: list[probes.Item], status: str, gate: str, tmp_path: Path
) -> None:
    document = probes.document("x", "boot-1", ["s"], asked, STRICT)
    checked(document)
    assert (document["status"], document["gate"]) == (status, gate)
    if status != "ok":
        assert "expected '1', got nothing" in document["reason"]["evidence"][0]
    artifact.write(tmp_path / "probe.json", document)
    assert artifact.read(tmp_path / "probe.json") == document


def test_a_skipped_probe_follows_the_schema() -> None:
    cause = artifact.document("server/1", "failed", artifact.reason("oom", "out of memory"))
    checked(artifact.skipped("probe/1", cause, experiment="x"))


# --- suites that are refused ---

GOOD = """
suite: mine
description: d
detects: x
source: me
max_tokens: 8
rule: number
items:
  - {id: a, prompt: "1+1?", answer: 2}
"""


def write(folder: Path, text: str) -> Path:
    (folder / "mine.yaml").write_text(text)
    return folder


def test_a_users_suite_is_read(tmp_path: Path) -> None:
    assert probes.load(["mine"], write(tmp_path, GOOD)) == [
        probes.Question("a", "mine", "1+1?", "2", "number", 8)
    ]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "answer: 2}",
            "answer: 2}\n  - {id: a, prompt: p, answer: 3}",
            "items[1]: id 'a' stands twice",
        ),
        (", answer: 2", "", "items[0]: no answer"),
        ("answer: 2", "answer: ''", "items[0] (a): answer must be a text"),
        ("answer: 2", "answer: yes", "items[0] (a): answer must be a text or a whole number"),
        ("answer: 2", "answer: two", "answer 'two' is no number"),
        ("answer: 2", "answer: '(', rule: regex", "does not compile"),
        ("answer: 2", "answer: '(a+)+b', rule: regex", "may backtrack without end"),
        ("answer: 2", "answer: D, rule: choice, choices: [A, B]", "none of its choices"),
        ("rule: number", "rule: fuzzy", "rule must be one of exact, number, regex, choice"),
        ("max_tokens: 8", "max_tokens: 0", "max_tokens must be a whole number above 0"),
        ("answer: 2", "answer: 2, times: 0", "items[0]: times must be a whole number above 0"),
        ("answer: 2", "answer: 2, records: many", "records must be a whole number above 0"),
        ("id: a", "id: 'A b'", "id must be lower-case"),
        ("detects: x\n", "", "the file: no detects"),
        ("answer: 2", "answer: 2, anwser: 3", "unknown key 'anwser'"),
        ("suite: mine", "suite: yours", "it must be the file's name, 'mine'"),
        ("  - {id", "  - [id", "not YAML"),
        (GOOD, "", "the file must hold keys and values"),
        (GOOD[GOOD.index("items") :], "items: []", "items must be a list of questions"),
    ],
)
def test_a_broken_suite_is_refused_in_one_line(
    old: str, new: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(probes.SuiteError) as refused:
        probes.load(["mine"], write(tmp_path, GOOD.replace(old, new)))
    message = str(refused.value)
    assert says in message
    assert message.startswith(str(tmp_path / "mine.yaml"))
    assert "\n" not in message


def test_an_unknown_suite_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(probes.SuiteError, match="no such probe suite; there are: mine"):
        probes.load(["theirs"], write(tmp_path, GOOD))


def test_patterns_without_nested_repeats_are_fine() -> None:
    assert trouble(r"^(yes|no)\b.*$") is None
    assert trouble(r"a{2,5}(b|c)d+") is None
    assert "backtrack" in (trouble(r"(a|ab)*c") or "")
    assert "backtrack" in (trouble(r"(\d+\s?)*x") or "")
