"""One server for all jobs that measure it: started once, used by one job at a time, never orphaned.

``with lease(ServerSpec.of(plan, weights), log_dir=folder) as boot:`` is all that a stage needs.
"""

from bringup.serving.errors import Busy, Interrupted, ServerFailed
from bringup.serving.leasing import Boot, lease
from bringup.serving.spec import ServerSpec, value_of

__all__ = ["Boot", "Busy", "Interrupted", "ServerFailed", "ServerSpec", "lease", "value_of"]
