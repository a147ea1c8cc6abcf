"""The machine: NVML present, absent or failing; machines that the config describes; the screen."""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace

import pynvml
import pytest

from bringup import hardware
from documents import checked

EIGHT_PRO_6000 = {
    "gpus": {"count": 8, "name": "RTX PRO 6000", "capability": "12.0", "memory_gib": 95.6}
}


class FakeNvml:
    """A driver with some GPUs; what a question is not answered for, it fails."""

    def __init__(self, gpus, *, nvlink=True):
        self.gpus = gpus
        self.nvlink = nvlink
        self.open = 0

    def install(self, monkeypatch):
        answers = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda place: self.gpus[place],
            "nvmlDeviceGetName": lambda gpu: gpu["name"].encode(),
            "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu["capability"],
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(
                total=gpu["memory"], free=gpu["memory"] // 2
            ),
            "nvmlDeviceGetUUID": lambda gpu: gpu["uuid"],
            "nvmlSystemGetDriverVersion": lambda: b"580.95.05",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
            "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: 20,
            "nvmlDeviceGetP2PStatus": self._p2p,
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=17)],
            "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 600_000,
        }
        for name in dir(pynvml):
            if name.startswith("nvml") and callable(getattr(pynvml, name)):
                monkeypatch.setattr(pynvml, name, answers.get(name, self._unsupported))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def _init(self):
        self.open += 1

    def _shutdown(self):
        self.open -= 1

    def _p2p(self, one, other, question):
        ctypes.c_uint(question)  # as NVML's own function wants it: no tuple
        joined = self.nvlink or question != pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        return pynvml.NVML_P2P_STATUS_OK if joined else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED

    def _unsupported(self, *arguments):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def gpu(place, name="NVIDIA H200", capability=(9, 0), memory=150_754_820_096):
    return {"name": name, "capability": capability, "memory": memory, "uuid": f"GPU-{place}abc"}


@pytest.fixture
def without_nvml(monkeypatch):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)


@pytest.mark.usefixtures("without_nvml")
def test_a_machine_without_nvml_is_a_cpu_host():
    found = hardware.fingerprint()
    checked(found)
    assert (found["architecture"], found["gpus"], found["driver"]) == ("cpu", [], None)
    assert found["cpu"]["cores"] >= 1
    assert found["ram_gib"] > 0


def test_gpus_are_read_with_their_links(monkeypatch):
    driver = FakeNvml([gpu(0), gpu(1)], nvlink=False)
    driver.install(monkeypatch)
    found = hardware.fingerprint()
    checked(found)
    assert found["architecture"] == "sm90"
    assert found["gpus"][0] == {
        "name": "NVIDIA H200",
        "capability": "9.0",
        "memory_gib": 140.4,
        "uuid": "GPU-0abc",
    }
    assert (found["driver"], found["cuda"]) == ("580.95.05", "13.1")
    assert found["links"] == [
        {"gpus": [0, 1], "path": "several PCIe switches", "nvlink": False, "peer_access": True}
    ]
    assert driver.open == 0


def test_the_fingerprint_holds_nothing_that_changes_by_itself(monkeypatch):
    gpus = [gpu(0)]
    FakeNvml(gpus).install(monkeypatch)
    before = hardware.fingerprint()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: [])
    assert hardware.fingerprint() == before


@pytest.mark.parametrize(
    ("visible", "left"),
    [("1", ["GPU-1abc"]), ("GPU-0", ["GPU-0abc"]), ("", []), ("0, 1", ["GPU-0abc", "GPU-1abc"])],
)
def test_cuda_visible_devices_narrows_the_machine(monkeypatch, visible, left):
    FakeNvml([gpu(0), gpu(1)]).install(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [each["uuid"] for each in hardware.fingerprint()["gpus"]] == left


def test_a_machine_is_what_most_of_its_gpus_are(monkeypatch):
    cards = [gpu(0, "RTX A4000", (8, 6)), gpu(1, capability=(12, 0)), gpu(2, capability=(12, 0))]
    FakeNvml(cards).install(monkeypatch)
    assert hardware.fingerprint()["architecture"] == "sm120"


def test_live_state_is_null_where_the_driver_does_not_say(monkeypatch):
    FakeNvml([gpu(0), gpu(1)]).install(monkeypatch)
    (state,) = hardware.live(["GPU-1abc"])["gpus"]
    assert state["uuid"] == "GPU-1abc"
    assert state["free_gib"] == 70.2
    assert state["power_limit_w"] == 600
    assert state["processes"] == [17]
    assert state["sm_clock_mhz"] is None


def test_a_gpu_that_was_lost_is_not_there(monkeypatch):
    FakeNvml([gpu(0), gpu(1)]).install(monkeypatch)

    def lost(handle):
        if handle["uuid"] == "GPU-0abc":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return handle["capability"]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lost)
    found = hardware.fingerprint()
    assert [each["uuid"] for each in found["gpus"]] == ["GPU-1abc"]
    assert found["links"] == []


@pytest.mark.usefixtures("without_nvml")
def test_live_state_without_a_gpu():
    state = hardware.live()
    assert state["gpus"] == []
    assert state["disk_free_gib"] > 0


def test_a_described_machine():
    described = hardware.fingerprint(EIGHT_PRO_6000)
    checked(described)
    assert described["described"]
    assert described["architecture"] == "sm120"
    assert len(described["gpus"]) == 8


def test_yaml_reads_a_capability_as_a_number():
    described = hardware.fingerprint({"gpus": {"count": 1, "name": "H200", "capability": 9}})
    assert described["gpus"] == [
        {"name": "H200", "capability": "9.0", "memory_gib": 140.0, "uuid": None}
    ]


def test_no_gpu_can_be_described():
    assert hardware.fingerprint({"gpus": []})["architecture"] == "cpu"


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        ({"count": 0, "name": "H200"}, "gpus[0].count: 0 is not a number of GPUs (1 or more)"),
        ({"name": "H200", "capability": "12.0"}, "H200 has compute capability 9.0, not 12.0"),
        ({"name": "RTX PRO 6000", "memory_gib": 48}, "has 95.6 GiB, not 48"),
        ({"name": "H100"}, "add memory_gib"),
        ({"name": "Mystery", "memory_gib": 80}, 'add capability ("9.0")'),
        (
            {"name": "AMD Instinct MI300X", "memory_gib": 192},
            "is not supported; supported are NVIDIA",
        ),
        ({"name": "Gaudi 3", "memory_gib": 128}, "is not supported"),
        ({"name": "X", "capability": "gfx942", "memory_gib": 192}, "supported are NVIDIA GPUs"),
        ({"name": "H200", "memory": 140}, "unknown key 'memory'"),
        ({"name": "H200", "memory_gib": "140 GB"}, "'140 GB' is not a size in GiB"),
        ("8 × H200", "is no description; write"),
        (["H200"], "'H200' is no mapping"),
    ],
)
def test_contradictory_descriptions_are_told(gpus, told):
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        hardware.fingerprint({"gpus": gpus})
    assert "\n" not in str(error.value)


def test_an_unknown_key_of_the_section_is_told():
    with pytest.raises(ValueError, match="unknown key 'gpu'"):
        hardware.fingerprint({"gpu": []})


@pytest.mark.parametrize(
    ("requires", "why"),
    [
        ({}, None),
        ({"gpus": 4, "gpu_memory_gib": 80}, None),
        ({"gpus": 8, "capability": "12.0"}, None),
        ({"capability": ["9.0", "12.0"]}, None),
        (
            {"gpus": 9},
            "needs 9 GPUs; the machine of the config has 8 × RTX PRO 6000 (95.6 GiB, 12.0)",
        ),
        (
            {"gpus": 4, "gpu_memory_gib": 141},
            "needs 4 GPUs of at least 141 GiB each; "
            "the machine of the config has 8 × RTX PRO 6000 (95.6 GiB, 12.0)",
        ),
        (
            {"capability": ["10.0"]},
            "needs 1 GPU of compute capability 10.0; "
            "the machine of the config has 8 × RTX PRO 6000 (95.6 GiB, 12.0)",
        ),
    ],
)
def test_the_screen(requires, why):
    assert hardware.screen(requires, hardware.fingerprint(EIGHT_PRO_6000)) == why


@pytest.mark.usefixtures("without_nvml")
def test_the_screen_on_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr(hardware, "_unsupported_accelerators", list)
    why = hardware.screen({"gpus": 4, "gpu_memory_gib": 80}, hardware.fingerprint())
    assert why == "needs 4 GPUs of at least 80 GiB each; this machine has none"


@pytest.mark.usefixtures("without_nvml")
def test_the_screen_names_accelerators_that_it_can_not_use(monkeypatch):
    monkeypatch.setattr(hardware, "_unsupported_accelerators", lambda: ["AMD (ROCm)"])
    why = hardware.screen({"gpus": 1}, hardware.fingerprint())
    assert "this machine has none (AMD (ROCm) found; supported are NVIDIA GPUs" in why


@pytest.mark.usefixtures("without_nvml")
def test_the_screen_weighs_the_ram():
    found = hardware.fingerprint()
    assert "GiB of RAM" in hardware.screen({"ram_gib": found["ram_gib"] + 1}, found)
    assert hardware.screen({"ram_gib": found["ram_gib"]}, found) is None
