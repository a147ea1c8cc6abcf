"""How long threads waited for a CPU, as the kernel counts it."""

import os
import subprocess
import sys
import time

import pytest

from bringup.load import cpu

BUSY = "while True: pass"


@pytest.fixture
def busy():
    """Start busy processes on one and the same core."""
    core = min(os.sched_getaffinity(0))
    started = []

    def start(count):
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-IS", "-c", BUSY])
            os.sched_setaffinity(process.pid, {core})
            started.append(process)
        return started[0].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_process_that_shares_its_core_waits(busy):
    pid = busy(2)
    before, began = cpu.waits(pid), time.monotonic()
    if not before:
        pytest.skip("this kernel does not count waits (schedstat)")
    while time.monotonic() - began < 1:
        time.sleep(0.05)
    waited = cpu.longest(before, cpu.waits(pid))
    assert 0.2 < waited <= time.monotonic() - began + 0.1


def test_what_a_process_started_counts_as_it():
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-IS', '-c', '{BUSY}'])"
    with subprocess.Popen([sys.executable, "-IS", "-c", program], start_new_session=True) as parent:
        try:
            deadline = time.monotonic() + 10
            while len({name.split("/")[0] for name in cpu.waits(parent.pid)}) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            os.killpg(parent.pid, 9)


def test_nothing_is_known_of_a_process_that_is_gone():
    with subprocess.Popen([sys.executable, "-IS", "-c", ""]) as process:
        process.wait()
    assert cpu.waits(process.pid) == {}
    assert cpu.longest({}, {}) is None
