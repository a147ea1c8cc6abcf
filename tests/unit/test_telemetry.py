"""Energy over a run's own window, and the holes that make it unknown."""

from __future__ import annotations

import threading

import pytest

from bringup.load import telemetry
from bringup.load.telemetry import Sample, Watch


def sample(time_s: float, power_w: float = 100.0, **changes: object) -> Sample:
    fields: dict[str, object] = {
        "utilisation": 50,
        "memory_mib": 1000,
        "clock_mhz": 1500,
        "reasons": 0,
        "processes": frozenset({7}),
    }
    return Sample(time_s, power_w, **fields | changes)  # type: ignore[arg-type]


def test_energy_is_power_times_time_inside_the_window_only() -> None:
    steady = [sample(t, 200.0) for t in range(11)]
    assert telemetry.energy_j(steady, 2.5, 6.0) == pytest.approx(200 * 3.5)


def test_power_is_taken_as_linear_between_samples() -> None:
    ramp = [sample(0.0, 0.0), sample(10.0, 100.0)]
    assert telemetry.energy_j(ramp, 0.0, 10.0) == pytest.approx(500)
    assert telemetry.energy_j(ramp, 5.0, 10.0) == pytest.approx(375)


def test_two_gpus_add_up() -> None:
    watch = Watch(
        {"a": [sample(t, 100.0) for t in range(6)], "b": [sample(t, 300.0) for t in range(6)]}
    )
    seen = telemetry.figures(watch, 1.0, 4.0, output_tokens=600)
    assert (seen["power_valid"], seen["power_w"]) == (True, pytest.approx(400))
    assert seen["joules_per_output_token"] == pytest.approx(400 * 3 / 600)
    assert telemetry.mean_power_w(watch) == pytest.approx(400)


def test_idle_power_is_not_known_where_a_gpu_was_not_seen() -> None:
    assert telemetry.mean_power_w(Watch({"a": [sample(0.0)], "b": []})) is None
    assert telemetry.mean_power_w(Watch()) is None


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ([], "do not reach"),
        ([2.0, 3.0, 4.0, 5.0], "do not reach"),  # began after the first send
        ([0.0, 1.0, 2.0, 3.0], "do not reach"),  # ended before the last token
        ([0.0, 1.0, 3.5, 5.0], "2.5 s without a sample"),
    ],
)
def test_a_hole_in_the_samples_leaves_energy_unknown(times: list[float], why: str) -> None:
    seen = telemetry.figures(Watch({"a": [sample(t) for t in times]}), 1.0, 4.0, 100)
    assert seen["power_valid"] is False
    assert why in seen["power_invalid"]
    assert seen["energy_j"] is seen["joules_per_output_token"] is None


def test_what_holds_clocks_down_is_told_apart_from_idling() -> None:
    reasons = [0x1, 0x4, 0x4 | 0x40, 0x0]
    watch = Watch({"a": [sample(float(t), reasons=bits) for t, bits in enumerate(reasons)]})
    slowed = telemetry.figures(watch, 0.0, 3.0, 100)["slowed"]
    assert slowed == {"power cap": 0.5, "hardware thermal slowdown": 0.25}


def test_a_process_that_comes_during_the_run_is_counted() -> None:
    came = [sample(0.0), sample(1.0, processes=frozenset({7, 8})), sample(2.0)]
    assert telemetry.figures(Watch({"a": came}), 0.0, 2.0, 1)["newcomers"] == 1


def test_watching_looks_at_start_and_end_and_in_between() -> None:
    looks: list[str] = []
    third = threading.Event()

    def read(gpu: str) -> Sample:
        looks.append(gpu)
        if len(looks) == 3:
            third.set()
        if len(looks) == 2:
            raise OSError("the sensor is busy")
        return sample(float(len(looks)))

    with telemetry.watching(["a"], read, interval_s=0.01) as watch:
        assert looks == ["a"]
        assert third.wait(10)
    assert len(watch.samples["a"]) == len(looks) - 1 >= 3
