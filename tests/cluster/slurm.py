"""A real Slurm of two nodes on this machine, for the time of a test."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
NODES = ("n1", "n2")

LONGEST_S = 600.0
"""What a run of stand-ins, a minute on a machine that does nothing else, may take."""

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket,cred_expire=10
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=1
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={home}/state
SlurmctldPidFile={home}/slurmctld.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdPidFile={home}/%n.pid
SlurmdLogFile={home}/%n.log
SlurmdSpoolDir={home}/spool.%n
TaskProlog={home}/prolog
KillWait=5
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdTimeout=60
NodeName=DEFAULT CPUs=1 RealMemory={mib} Gres=gpu:1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\nCgroupAutomount=no\n"
GRES_CONF = """\
NodeName=n1 Name=gpu File={home}/gpu.n1
NodeName=n2 Name=gpu File={home}/gpu.n2
"""
PROLOG = """\
#!/bin/sh
# What is local to a node, although both are this machine.
echo export BRINGUP_RUN={home}/local.$SLURMD_NODENAME/run
echo export BRINGUP_LOCKS={home}/local.$SLURMD_NODENAME/locks
"""


def missing() -> str | None:
    """Say what keeps a real Slurm from being started here, or None."""
    absent = [name for name in PROGRAMS if not found(name)]
    if absent:
        return f"not installed: {', '.join(absent)} (slurmctld slurmd slurm-client munge)"
    if os.getuid():
        return "Slurm's daemons want root"
    return None


def found(program: str) -> str | None:
    """Return where a program is; daemons are below sbin, which users' paths lack."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Slurm:
    """Its daemons, and what tests ask of them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(3)
        facts = {
            "home": home,
            "host": socket.gethostname().split(".")[0],
            "ports": ports,
            "mib": psutil.virtual_memory().total >> 20,  # each node has all that there is
        }
        (home / "slurm.conf").write_text(SLURM_CONF.format(**facts))
        (home / "cgroup.conf").write_text(CGROUP_CONF)
        (home / "gres.conf").write_text(GRES_CONF.format(**facts))
        (home / "prolog").write_text(PROLOG.format(**facts))
        (home / "prolog").chmod(0o755)
        (home / "state").mkdir()
        for node in NODES:
            (home / f"gpu.{node}").touch()
            (home / f"spool.{node}").mkdir()

    @contextlib.contextmanager
    def running(self) -> Iterator[Slurm]:
        """Run all of it; nothing is left afterwards."""
        key = self.home / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        try:
            places = {
                "key-file": key,
                "socket": self.home / "munge.socket",
                "pid-file": self.home / "munge.pid",
                "log-file": self.home / "munge.log",
                "seed-file": self.home / "munge.seed",
            }
            options = [f"--{name}={path}" for name, path in places.items()]
            self.start("munge", "munged", "--foreground", "--force", *options)
            until(lambda: (self.home / "munge.socket").exists(), "munge")
            self.start_controller()
            for node in NODES:
                self.start_node(node)
            until(lambda: self.states() == {"n1": "IDLE", "n2": "IDLE"}, "two idle nodes")
            yield self
        finally:
            self.ask("scancel", "--user=root")
            for name in reversed(list(self._daemons)):
                self.stop(name)

    def start(self, name: str, program: str, *arguments: str, inside: tuple[str, ...] = ()) -> None:
        """Start a daemon; ``inside`` is a command that it runs below."""
        self._daemons[name] = subprocess.Popen(
            [*inside, found(program) or program, *arguments],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=(self.home / f"{name}.stderr").open("a"),
        )

    def start_controller(self) -> None:
        """Start slurmctld, which finds the state that an earlier one saved."""
        self.start("controller", "slurmctld", "-D")
        until(lambda: "UP" in self.ask("scontrol", "ping"), "the controller")

    def start_node(self, node: str, *inside: str) -> None:
        """Start a node's slurmd."""
        self.start(node, "slurmd", "-D", "-N", node, inside=inside)

    def stop(self, name: str) -> None:
        """End a daemon."""
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def ask(self, *command: str) -> str:
        """Return what one of Slurm's programs says."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        """Return the nodes' states, by name."""
        lines = self.ask("sinfo", "-N", "-h", "-o", "%N %T").splitlines()
        return {name: state.upper() for name, state in re.findall(r"(\S+) (\w+)", "\n".join(lines))}

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return (state, node) of the jobs that wait or run, by number."""
        lines = self.ask("squeue", "-h", "-o", "%i %T %N").splitlines()
        rows = [(line + "  ").split(" ", 2) for line in lines]
        return {number: (state, node.strip()) for number, state, node in rows}


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def until(holds: Callable[[], object], what: str, timeout_s: float = 180.0) -> None:
    """Return when ``holds`` does."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.5)
