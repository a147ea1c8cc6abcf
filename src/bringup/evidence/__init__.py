"""Evidence: what a server's log, its ``/server_info`` and its kernels prove (docs/design.md §6)."""

from bringup.evidence.diagnosis import diagnose, failure
from bringup.evidence.examine import examine
from bringup.evidence.kernels import SCHEMA as KERNELS_SCHEMA
from bringup.evidence.kernels import kernels_document, profile_request
from bringup.evidence.log import DecodeLine, PrefillLine, decode_lines, prefill_lines, traffic
from bringup.evidence.profiling import take_kernels
from bringup.evidence.server import SCHEMA, failed_document, server_document

__all__ = [
    "KERNELS_SCHEMA",
    "SCHEMA",
    "DecodeLine",
    "PrefillLine",
    "decode_lines",
    "diagnose",
    "examine",
    "failed_document",
    "failure",
    "kernels_document",
    "prefill_lines",
    "profile_request",
    "server_document",
    "take_kernels",
    "traffic",
]
