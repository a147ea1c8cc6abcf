"""Prompts from files: every shape that is read, and every broken entry named before a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup.load import clients, prompts

USER = {"role": "user", "content": "Why is the sky blue?"}


def test_ours_are_there_and_all_different() -> None:
    ours = prompts.load("chat")
    assert ours is not None
    texts = [messages[-1]["content"] for messages in ours.conversations]
    assert len(set(texts)) == len(texts) >= 40
    assert ours.document()["conversations"] == len(texts)
    assert prompts.load("random") is None


@pytest.mark.parametrize(
    "entry",
    [
        "Why is the sky blue?",
        {"prompt": "Why is the sky blue?"},
        {"messages": [USER, {"role": "assistant", "content": "Rayleigh."}]},
        {
            "id": "x",
            "conversations": [
                {"from": "human", "value": "Why is the sky blue?"},
                {"from": "gpt", "value": "Rayleigh."},
            ],
        },
    ],
)
def test_every_shape_ends_with_what_the_user_says(entry: object, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps(entry) + "\n\n" + json.dumps(entry) + "\n")
    (tmp_path / "p.json").write_text(json.dumps([entry]))
    lines, listed = (prompts.load(str(tmp_path / f"p.{kind}")) for kind in ("jsonl", "json"))
    assert lines is not None and listed is not None
    assert lines.conversations == ([USER], [USER])
    assert listed.conversations == ([USER],)


def test_turns_before_the_last_question_are_kept(tmp_path: Path) -> None:
    said = [("system", "Be brief."), ("human", "Hi"), ("gpt", "Hello"), ("human", "Why?")]
    entry = {"conversations": [{"from": who, "value": what} for who, what in said]}
    (tmp_path / "p.json").write_text(json.dumps([entry]))
    found = prompts.load(str(tmp_path / "p.json"))
    assert found is not None
    assert [each["role"] for each in found.conversations[0]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_broken_lines_are_all_named_with_what_would_be_right(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "ok"}\n{"prompt": \n{"question": "?"}\n17\n{"messages": []}\n')
    with pytest.raises(ValueError, match=r"p\.jsonl") as raised:
        prompts.load(str(path))
    first, *others, last = str(raised.value).splitlines()
    assert first == f"{path}:2: no JSON"
    assert [line.split(":")[1] for line in others] == ["3", "4", "5"]
    assert 'neither "prompt" nor "messages"' in others[0]
    assert last.startswith("right: ")


def test_many_broken_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("no\n" * 20)
    with pytest.raises(ValueError, match="and 15 more"):
        prompts.load(str(tmp_path / "p.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none.jsonl", None, "No such file"),
        ("p.csv", "a,b", "is not right; right: random, chat, or a .json"),
        ("p.jsonl", "\n", "holds no prompts"),
        ("p.json", '{"prompt": "x"}', "not a list"),
        ("p.json", "[", "p.json: "),
    ],
)
def test_what_is_no_file_of_prompts_says_what_would_be(
    name: str, content: str | None, why: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=why):
        prompts.load(str(tmp_path / name))


def test_sglangs_own_client_can_not_send_texts_or_an_open_loop() -> None:
    plain = {"client": "sglang", "rate": None, "prompts": "random"}
    clients.check("x", plain)
    clients.check("x", plain | {"client": "direct", "rate": 2.0, "prompts": "chat"})
    for wrong in ({"rate": 2.0}, {"prompts": "chat"}):
        with pytest.raises(ValueError, match=r"experiments\.x\.sweep: client sglang sends closed"):
            clients.check("x", plain | wrong)
