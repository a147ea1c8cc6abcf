"""The two ways in which a checkpoint says no."""

from __future__ import annotations


class UnusableError(ValueError):
    """A fact about the checkpoint: a file of it is missing, damaged or not what it should be.

    It becomes a document with status ``failed``; trying again changes nothing.
    """

    def __init__(self, message: str) -> None:
        """Take the message; names from files, which may hold line breaks, don't break it."""
        super().__init__(" ".join(message.split()))


class UnreachableError(OSError):
    """No fact about the checkpoint: the hub, the network, the disk or a right to read is missing.

    The job fails with this one line and is tried again.
    """
