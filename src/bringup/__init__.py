"""Bring a checkpoint up with SGLang: does it start, is it right, how fast, what really ran."""

__version__ = "0.1.0"
