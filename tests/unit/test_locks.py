"""Locks on shared file systems: on NFS, and where there are none."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from bringup.resident import locked


@pytest.fixture
def nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let flock be as on NFS, where it is fcntl(2)'s: to exclude others, a file must be writable.

    "In order to place an exclusive lock, the file must be opened for writing" (flock(2)).
    """

    def flock(descriptor: int, kind: int) -> None:
        reads_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if kind & fcntl.LOCK_EX and reads_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("nfs")
def test_a_lock_on_nfs(tmp_path: Path) -> None:
    for _ in ("a new file", "one that is there"):
        with locked(tmp_path / "lock"), locked(tmp_path / "lock", shared=True):
            pass


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError) as caught, locked(tmp_path / "lock"):
        pass
    assert f"{tmp_path}/lock is on a file system without locks" in str(caught.value)
    assert "set BRINGUP_CACHE" in str(caught.value)
    assert "\n" not in str(caught.value)
