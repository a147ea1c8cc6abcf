"""How far two servers' predictions are apart, and when that is more than noise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Answer, ScriptedServer

from bringup import artifact, reference
from bringup.paths import PROJECT
from bringup.reference import Bound, Comparison, NoReadingError, Place, stage
from documents import checked

NO_NOISE: list[Comparison] = []


def place(token: int = 1, **top: float) -> Place:
    """Return a place with the probabilities of the tokens named t<id>."""
    logs = {int(name[1:]): math.log(each) for name, each in top.items()}
    return Place(token, logs.get(token, -20.0), logs)


def test_divergence_is_that_of_the_distributions() -> None:
    base, other = place(t1=0.5, t2=0.25, t3=0.25), place(t1=0.25, t2=0.5, t3=0.25)
    by_hand = 0.5 * math.log(0.5 / 0.25) + 0.25 * math.log(0.25 / 0.5)
    assert reference.divergence(base, other) == pytest.approx(by_hand)
    assert reference.divergence(base, base) == 0


def test_tokens_that_only_one_names_are_in_one_bucket() -> None:
    """0.6 and the rest, 0.4, against 0.3 and 0.7: what the rest consists of is not known."""
    base, other = place(t1=0.6, t2=0.3), place(t1=0.3, t9=0.6)
    by_hand = 0.6 * math.log(0.6 / 0.3) + 0.4 * math.log(0.4 / 0.7)
    assert reference.divergence(base, other) == pytest.approx(by_hand)


def test_comparison_over_all_places() -> None:
    same = place(1, t1=0.5, t2=0.5)
    moved = place(1, t1=0.25, t2=0.75)
    kl = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    seen = reference.compare([[same, same], [same, same]], [[same, same], [same, moved]])
    assert seen.places == 4
    assert seen.mean_kl == pytest.approx(kl / 4)
    assert seen.top1 == 0.75  # the first of two equals against the second
    ours = math.exp(-math.log(0.5))
    theirs = math.exp(-(3 * math.log(0.5) + math.log(0.25)) / 4)
    assert seen.perplexity == pytest.approx(theirs - ours)


def test_the_tail_is_seen_where_the_mean_is_not() -> None:
    same, far = place(1, t1=0.9, t2=0.1), place(1, t1=0.001, t2=0.999)
    base, other = [[same] * 200], [[same] * 196 + [far] * 4]
    assert reference.compare(base, other).tail_kl > 1


def test_other_tokens_are_another_vocabulary() -> None:
    with pytest.raises(NoReadingError, match="text 1 is cut into other tokens"):
        reference.compare([[place(1, t1=1.0)]], [[place(2, t2=1.0)]])
    with pytest.raises(NoReadingError, match="2 texts against 1"):
        reference.compare([[], []], [[]])
    with pytest.raises(NoReadingError, match="nothing was read"):
        reference.compare([[]], [[]])


def test_a_bound_is_several_times_the_noise_and_never_nothing() -> None:
    noise = [Comparison(100, 0.01, 0.5, 0.97, 0.0), Comparison(100, 0.002, 0.6, 0.98, 0.0)]
    bound = Bound.of_noise(noise)
    assert bound.mean_kl == pytest.approx(0.03)
    assert bound.tail_kl == pytest.approx(1.8)
    assert bound.top1 == pytest.approx(0.91)
    quiet = Bound.of_noise(NO_NOISE)
    assert 0 < quiet.mean_kl < 0.01 and 0.95 < quiet.top1 < 1


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (Comparison(100, 1e-4, 0.01, 1.0, 0.0), []),
        (Comparison(100, 0.05, 0.01, 1.0, 0.0), ["mean KL"]),
        (Comparison(100, 1e-4, 2.0, 1.0, 0.0), ["tail KL"]),
        (Comparison(100, 1e-4, 0.01, 0.9, 0.0), ["the same likeliest token at 90.0%"]),
    ],
)
def test_what_is_beyond_the_bound_is_said(seen: Comparison, says: list[str]) -> None:
    found = Bound.of_noise(NO_NOISE).broken_by(seen)
    assert len(found) == len(says)
    assert all(part in text for part, text in zip(says, found, strict=True))


# --- reading a server ---


def generated(tokens: list[Any], tops: list[Any]) -> Answer:
    return Answer({"meta_info": {"input_token_logprobs": tokens, "input_top_logprobs": tops}})


def read(answer: Answer) -> reference.Reading:
    with ScriptedServer(lambda path, body: answer) as server:
        found = reference.read(server.url, ["a text"], timeout_s=5)
        ((path, body),) = server.requests
    assert path == "/generate"
    assert body["return_logprob"] and body["logprob_start_len"] == 0
    assert body["top_logprobs_num"] == reference.TOP
    return found


def test_a_reading_is_what_sglang_says_of_each_token_but_the_first() -> None:
    """The shape of SGLang 0.5.23: [log probability, id, text]; nothing at the first token."""
    tokens = [[None, 49, None], [-0.5, 68, None]]
    tops = [None, [[-0.5, 68, None], [-1.5, 15, None]]]
    assert read(generated(tokens, tops)) == [[Place(68, -0.5, {68: -0.5, 15: -1.5})]]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer({"error": {"message": "no logprobs here"}}, status=400), "HTTP 400"),
        (Answer({"text": "x"}), "no log probabilities"),
        (Answer("<html>"), "no log probabilities"),
        (generated([[None, 1, None], [None, 2, None]], [None, [[-1.0, 2, None]]]), "no numbers"),
        (generated([[None, 1, None], [-1, 2, None]], [None, [[math.nan, 2, None]]]), "no numbers"),
    ],
)
def test_a_server_that_gives_no_probabilities_is_said(answer: Answer, says: str) -> None:
    with pytest.raises(NoReadingError, match=says):
        read(answer)


# --- the two documents ---


def reading(probability: float) -> Answer:
    log = math.log(probability)
    rest = math.log(1 - probability)
    tokens = [[None, 1, None], *([[log, 2, None]] * 50)]
    return generated(tokens, [None, *([[[log, 2, None], [rest, 3, None]]] * 50)])


def predicted(experiment: str, *probabilities: float) -> dict[str, Any]:
    """Return predictions.json of a server that reads one text; one probability for each time."""
    left = list(probabilities)

    def script(path: str, body: dict[str, Any]) -> Answer:
        return reading(left.pop(0) if len(left) > 1 else left[0])

    with ScriptedServer(script) as server:
        return checked(stage.predictions(experiment, "b1", server.url, ["a text"], timeout_s=5))


def test_predictions_know_how_far_they_are_from_themselves() -> None:
    document = predicted("x", 0.9, 0.9, 0.5)
    assert document["status"] == "ok"
    assert document["noise"]["again"]["mean_kl"] == 0
    by_hand = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert document["noise"]["batch"]["mean_kl"] == pytest.approx(by_hand, abs=1e-4)


def test_a_server_without_predictions_has_failed() -> None:
    with ScriptedServer(lambda path, body: Answer({"error": "no"}, status=400)) as server:
        document = checked(stage.predictions("x", "b1", server.url, ["a text"], timeout_s=5))
    assert document["status"] == "failed"
    assert "HTTP 400" in document["reason"]["message"]


def test_the_same_model_agrees_with_its_reference() -> None:
    document = checked(stage.reference("x", "base", predicted("x", 0.9), predicted("base", 0.9)))
    assert (document["status"], document["verdict"]) == ("ok", "agrees")


def test_a_worse_model_differs_though_its_likeliest_tokens_are_the_same() -> None:
    document = checked(stage.reference("x", "base", predicted("x", 0.7), predicted("base", 0.9)))
    assert (document["status"], document["verdict"]) == ("wrong", "differs")
    assert document["figures"]["top1"] == 1
    assert document["figures"]["perplexity"] == pytest.approx(1 / 0.7 - 1 / 0.9, abs=1e-4)
    assert "unlike base: mean KL" in document["reason"]["message"]


def test_what_a_noisy_server_does_to_itself_is_no_difference() -> None:
    noisy = predicted("base", 0.9, 0.9, 0.7)
    assert stage.reference("x", "base", predicted("x", 0.75), noisy)["verdict"] == "agrees"


def test_nothing_is_compared_with_a_server_that_failed() -> None:
    failed = artifact.document(
        "predictions/1", "failed", artifact.reason("no-predictions", "why"), experiment="base"
    )
    document = checked(stage.reference("x", "base", predicted("x", 0.9), failed))
    assert (document["status"], document["reason"]["class"]) == ("skipped", "no-predictions")


def test_the_texts_that_ship_are_read(tmp_path: Path) -> None:
    assert len(stage.load(PROJECT / "resources" / "texts" / "reference.yaml")) >= 8
    wrong = tmp_path / "texts.yaml"
    for content in ("texts: []", "texts: [1]", "[", "other: 1"):
        wrong.write_text(content)
        with pytest.raises(ValueError, match="texts"):
            stage.load(wrong)
