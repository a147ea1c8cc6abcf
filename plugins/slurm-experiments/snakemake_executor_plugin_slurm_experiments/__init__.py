"""One Slurm job for each experiment: Snakemake's Slurm plugin, sending jobs that share a server.

A server is local to its node, so all that leases it must run there, in one allocation, outside of
``srun`` steps (Slurm ends whatever a step leaves behind).  Upstream's plugin sends a group of jobs
as steps, forces all of them when a job is started again, and on failure Snakemake deletes what
was finished.  So this one keeps upstream's submission, states and cancelling, and changes what a
job is: a plain ``snakemake`` in the batch script, which makes those files that are missing.
Started again on another node, it goes on where the lost one ended.  See docs/cluster.md.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from snakemake.iocontainers import ResourceList
from snakemake.jobs import GroupJob
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
from snakemake_executor_plugin_slurm import ExecutorSettings, common_settings
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from bringup import cluster

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

TOKEN = Path(".snakemake/bringup-shared")
"""A file that a node must see, below the working directory: the folder is shared then."""


class Parcel(GroupJob):
    """Jobs that one Slurm job makes: those of one experiment, or one that stands alone."""

    def __init__(self, name: str, sent: list[JobExecutorInterface], nodes: cluster.Cluster) -> None:
        """Take the jobs, or groups of jobs, that Snakemake handed out."""
        jobs = [job for each in sent for job in (each.jobs if each.is_group() else [each])]
        super().__init__(name, frozenset(jobs), None)
        self.sent = sent
        self._nodes = nodes
        self._title = name
        self.finalize()

    @property
    def name(self) -> str:
        """Its name in logs' paths."""
        return self._title

    @property
    def threads(self) -> int:
        """Set by the kind of node."""
        return 1

    @property
    def resources(self) -> ResourceList:
        """What sbatch is asked for: one job after the other, a load for each boot."""
        each = [job.resources for job in self.jobs]
        kind = self._nodes.kinds[each[0].node]
        gpus = max(one.get("gpu", 0) for one in each)
        boots = {job.wildcards.get("boot", 1) for job in self.jobs}
        loads_s = len(boots) * max(one.get("load_s", 0) for one in each)
        seconds = sum(one.seconds for one in each) + loads_s
        request = kind.request(gpus, cluster.minutes(seconds, gpus=gpus))
        if any(one.get("alone", 0) for one in each):
            request["slurm_extra"] = "--exclusive"
        words = {"partition": "slurm_partition", "account": "slurm_account"}
        return ResourceList(
            fromdict={"nodes": 1, **{words.get(key, key): asked for key, asked in request.items()}}
        )

    def outputs(self) -> list[str]:
        """Return one output of each job, later ones last."""
        return [str(job.output[0]) for level in self.toposorted for job in level]


def parcels(sent: Iterable[JobExecutorInterface], nodes: cluster.Cluster) -> list[Parcel]:
    """Put what belongs to one experiment into one parcel."""
    found: dict[str, list[JobExecutorInterface]] = {}
    for each in sent:
        found.setdefault(_title(each), []).append(each)
    return [Parcel(name, jobs, nodes) for name, jobs in found.items()]


def _title(job: JobExecutorInterface) -> str:
    if job.is_group():
        return str(next(iter(job.jobs)).wildcards.experiment)
    return "-".join([job.rule.name, *map(str, job.wildcards)])


class Executor(SlurmExecutor):
    """Sends parcels; see the module."""

    def __post_init__(self, test_mode: bool = False) -> None:
        """Look at what would make every job fail, before the first is sent."""
        described = self.workflow.globals["config"].get("nodes")
        if not described:
            raise WorkflowError("no table of nodes; right: --configfile profiles/slurm/nodes.yaml")
        if not self.workflow.execution_settings.keep_incomplete:
            raise WorkflowError(
                "what an experiment has finished would be deleted when it fails; "
                "right: --keep-incomplete, as profiles/slurm says"
            )
        self._nodes = cluster.load(described, file="nodes.yaml")
        self._home = Path(self.workflow.workdir_init)
        self._check_partitions()
        self._check_leftovers()
        settings = self.workflow.executor_settings
        if settings.status_command == "sacct" and not _has_accounting():
            settings.status_command = "squeue"  # sacct would never see a job end
        self._token = uuid.uuid4().hex
        (self._home / TOKEN).write_text(self._token)
        super().__post_init__(test_mode)
        self.slurm_logdir = self._home / "results/logs/slurm"

    def _check_partitions(self) -> None:
        present = {line.rstrip("*") for line in _asked("sinfo", "--noheader", "--format=%P")}
        for kind in self._nodes.kinds.values():
            name = kind.words.get("partition")
            if name and name not in present:
                raise WorkflowError(
                    f"nodes.{kind.name}.partition: there is no partition {name!r}; "
                    f"there are: {', '.join(sorted(present))}"
                )

    def _check_leftovers(self) -> None:
        """Refuse to send an experiment twice: jobs of a workflow that was killed may still run."""
        jobs = (
            line.split("|", 1) for line in _asked("squeue", "--me", "--noheader", "--format=%i|%Z")
        )
        here = [number for number, folder in jobs if Path(folder) == self._home]
        if here:
            raise WorkflowError(
                f"Slurm jobs of an earlier run still work in {self._home}: {', '.join(here)}; "
                f"wait for them, or: scancel {' '.join(here)}"
            )

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Send jobs, those of one experiment together."""
        super().run_jobs([])  # which remembers the event loop
        for parcel in parcels(jobs, self._nodes):
            for job in parcel.sent:
                self.run_job_pre(job)
            # Outputs are written whole or not at all.  An old one that stays where this job
            # doesn't get to would pass for a new one.
            for output in (Path(each) for job in parcel.jobs for each in job.output):
                output.unlink(missing_ok=True)
            self._job_submission_executor.submit(self.run_job, parcel)

    def format_job_exec(self, job: JobExecutorInterface) -> str:
        """Return the batch script: is this node fit for it, and then make what is missing."""
        parcel: Parcel = job
        gpus = parcel.resources.get("gpu") or 0
        kind = next(iter(parcel.jobs)).resources.node
        token = shlex.quote(str(self._home / TOKEN))
        complaint = f"{self._home} is not shared with this node"
        fit = (
            sys.executable,
            "-m",
            "bringup.node",
            "--kind",
            kind,
            "--gpus",
            gpus,
            "--sent",
            f"{time.time():.1f}",
            "--nodes",
            *self.workflow.overwrite_configfiles,
        )
        make = (
            sys.executable, "-m", "snakemake",
            "--snakefile", self.get_snakefile(),
            "--executor", "local", "--cores", "all", "--nolock", "--keep-going",
            "--rerun-incomplete", "--nocolor", "--scheduler", "greedy",
            "--latency-wait", self.workflow.execution_settings.latency_wait,
            "--configfile", *self.workflow.overwrite_configfiles,
            *(["--config", *study] if (study := self._study()) else []),
            "--allowed-rules", *sorted(parcel.rules),
            "--", *parcel.outputs(),
        )  # fmt: skip
        return (
            f'echo "Slurm job $SLURM_JOB_ID on $SLURMD_NODENAME ($(hostname))"; '
            f'test "$(cat {token})" = {self._token} || '
            f"{{ echo {shlex.quote(complaint)}: $(hostname) >&2; exit 1; }}; "
            f"export BRINGUP_ON_NODE={shlex.quote(kind)}; {_joined(fit)} && exec {_joined(make)}"
        )

    def _study(self) -> list[str]:
        study = self.workflow.globals["config"].get("study")
        return [f"study={study}"] if study else []

    def _report_job_submission_threadsafe(self, job_info: SubmittedJobInfo) -> None:
        for job in job_info.job.sent:
            super()._report_job_submission_threadsafe(
                SubmittedJobInfo(job, external_jobid=job_info.external_jobid, aux=job_info.aux)
            )
        self._link(job_info)

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        for job in job_info.job.sent:
            super()._report_job_error_threadsafe(SubmittedJobInfo(job), msg)

    def _link(self, job_info: SubmittedJobInfo) -> None:
        """Put a link to the Slurm job's log where the report points to: among the stages' logs."""
        log = Path(job_info.aux["slurm_logfile"])
        logs = self._home / "results/experiments" / job_info.job.name / "logs"
        if logs.parent.is_dir():
            logs.mkdir(exist_ok=True)
            link = logs / f"slurm-{job_info.external_jobid}.log"
            link.unlink(missing_ok=True)
            link.symlink_to(Path("../../../logs/slurm", log.relative_to(self.slurm_logdir)))

    def report_job_success(self, job_info: SubmittedJobInfo) -> None:
        """Hand on that a job has ended well, unless a node dated its files in the future."""
        for output in map(Path, _outputs(job_info.job)):
            if output.exists() and (complaint := cluster.early(output)):
                self.report_job_error(job_info, msg=f"{complaint}; set both by one time server. ")
                return
        super().report_job_success(job_info)

    def report_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **more: object
    ) -> None:
        """Hand on that a job failed, and say so in a line: Snakemake shows none for a group."""
        log = (job_info.aux or {}).get("slurm_logfile")
        said = [" ".join((msg or "failed").split())]
        if log and not Path(log).exists():
            more.pop("aux_logs", None)
            said.append(f"It left no log: is {self._home} shared with the nodes?")
        elif log:
            said += [line for line in _last_lines(Path(log)) if line.startswith("node ")]
        self.logger.error(f"{_title(job_info.job)}: {' '.join(said)}")
        super().report_job_error(job_info, msg, **more)

    def get_account_arg(self, job: JobExecutorInterface) -> Iterator[str]:
        """Yield the account that the table of nodes names; where it names none, Slurm's default."""
        if job.resources.get("slurm_account"):
            yield from super().get_account_arg(job)
        else:
            yield ""


def _last_lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-20:]


def _outputs(job: JobExecutorInterface) -> list[str]:
    return list(job.expanded_output) if job.is_group() else list(job.output)


def _asked(*command: str) -> list[str]:
    """Return the lines that one of Slurm's programs prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkflowError(f"Slurm can't be asked: {error}") from None
    if done.returncode:
        raise WorkflowError(f"{command[0]}: {done.stderr.strip()}")
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _has_accounting() -> bool:
    try:
        _asked("sacct", "--noheader", "--allocations")
    except WorkflowError:
        return False
    return True


def _joined(words: Iterable[object]) -> str:
    return shlex.join(map(str, words))
