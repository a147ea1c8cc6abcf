"""Snakemake's logger plugin of this workflow: `bringup.progress` on the terminal.

``profiles/default`` asks for it.  Errors, and all that is no job's coming and going, look as
Snakemake shows them; its whole output goes to its own log in ``.snakemake/log`` all the same, and
``--verbose`` or ``--workflow-profile none`` bring it back to the terminal.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Mapping
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from bringup.progress import TIMES, Job, Progress, Times, outlook

LEFT_OUT = frozenset(
    {
        LogEvent.WORKFLOW_STARTED,
        LogEvent.RESOURCES_INFO,
        LogEvent.GROUP_INFO,
        LogEvent.JOB_STARTED,
        LogEvent.PROGRESS,
        LogEvent.SHELLCMD,
    }
)
"""Events that our lines tell, or that nobody acts on."""

CHATTER = (
    "Select jobs to execute",
    "Conda environments: ignored",
    "Assuming unrestricted shared",
    "Using shell:",
    "Reasons:",
    "Some jobs were triggered by provenance",
    "If you prefer that only modification time",
    "If you are sure that a change for a certain",
    "Rules with provenance triggered",
    "This was a dry-run",
)
"""How messages begin that our lines tell, or that nobody acts on."""


class LogHandler(LogHandlerBase):
    """Writes a line when a job starts or ends; a dry run's jobs are told together at its end."""

    def __post_init__(self) -> None:
        settings = self.common_settings
        self._stream = sys.stdout if settings.stdout else sys.stderr
        self._snakemake = ColorizingTextHandler(
            nocolor=settings.nocolor,
            stream=self._stream,
            formatter=DefaultFormatter(settings.quiet, settings.show_failed_logs),
            filter=DefaultFilter(
                settings.quiet,
                settings.debug_dag,
                settings.verbose,
                settings.dryrun,
                settings.printshellcmds,
            ),
        )
        self._progress: Progress | None = None
        self._jobs: list[Job] = []

    def emit(self, record: LogRecord) -> None:
        """Write a record, or what we say instead of it."""
        try:
            self._emit(record)
        except Exception:
            self.handleError(record)  # as logging's own handlers do: a line lost, not the run

    def _emit(self, record: LogRecord) -> None:
        event = getattr(record, "event", None)
        own = not self.common_settings.verbose and not self.common_settings.quiet
        if own and event in _TOLD:
            told = _TOLD[event](self, record)
            if told:
                print(told, file=self._stream, flush=True)
        elif not own or not (event in LEFT_OUT or str(record.msg).startswith(CHATTER)):
            self._snakemake.handle(record)

    def _failed(self, record: LogRecord) -> None:
        """Tell of a failed Slurm job only what failed in it: Snakemake tells all that it held."""
        told = copy.copy(record)
        facts = vars(told)
        facts["job_error_info"] = list(filter(_began_and_failed, facts["job_error_info"]))
        if facts["job_error_info"] or facts["aux_logs"]:
            self._snakemake.handle(told)

    def _failed_part(self, record: LogRecord) -> None:
        """Tell of a failed job, unless it is part of a Slurm job, of which `_failed` tells."""
        if not vars(record).get("indent"):
            self._snakemake.handle(record)

    def _run(self, record: LogRecord) -> str | None:
        times = Times(TIMES)
        if self.common_settings.dryrun:
            return "\n".join(outlook(self._jobs, times)) if self._jobs else None
        self._progress = Progress(times)
        counts = {rule: n for rule, n in vars(record)["stats"].items() if rule != "total"}
        return _timed(self._progress.planned(counts))

    def _started(self, record: LogRecord) -> str | None:
        facts = vars(record)
        outputs = [*facts["output"], facts["rule_name"]]
        job = Job(facts["rule_name"], facts["wildcards"], str(outputs[0]), facts["reason"])
        self._jobs.append(job)
        if self._progress is None:
            return None
        return _timed(self._progress.started(facts["jobid"], job, time.monotonic()))

    def _finished(self, record: LogRecord) -> str | None:
        number = vars(record)["job_id"]
        told = self._progress and self._progress.finished(number, time.monotonic())
        return _timed(told) if told else None

    @property
    def writes_to_stream(self) -> bool:
        """Say that nobody else needs to write to the terminal."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """Say that Snakemake keeps its own log file."""
        return False

    @property
    def has_filter(self) -> bool:
        """Say that what is quiet is decided here."""
        return True

    @property
    def has_formatter(self) -> bool:
        """Say that what records look like is decided here."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """Say that nothing is drawn."""
        return False


_TOLD = {
    LogEvent.RUN_INFO: LogHandler._run,
    LogEvent.JOB_INFO: LogHandler._started,
    LogEvent.JOB_FINISHED: LogHandler._finished,
    LogEvent.GROUP_ERROR: LogHandler._failed,
    LogEvent.JOB_ERROR: LogHandler._failed_part,
}
"""Events that are told in our words."""


def _began_and_failed(job: Mapping[str, Any]) -> bool:
    """Tell whether a job of a Slurm job is the one that failed, of what its error says."""
    begun = any(Path(log).exists() for log in job["log"])
    return begun and not all(Path(output).exists() for output in job["output"])


def _timed(line: str) -> str:
    return f"{time.strftime('%H:%M:%S')}  {line}"
