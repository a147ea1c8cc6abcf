"""The one file that a user edits: read it, check it, resolve it into experiments.

Everything is checked before anything runs, and every problem is one line that names the file, the
line, the key, and what would be right.
"""

from bringup.config.experiments import SUITES, Config, is_recorded, load, suite_file
from bringup.config.source import ConfigError

__all__ = ["SUITES", "Config", "ConfigError", "is_recorded", "load", "suite_file"]
