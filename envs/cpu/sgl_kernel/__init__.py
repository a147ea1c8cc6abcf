"""Stands in for ``sgl_kernel`` on hosts without CUDA, so that SGLang can be imported there.

SGLang imports names from its kernel package unconditionally, and the released package
(``sglang-kernel`` on PyPI) is compiled for CUDA only: importing it without a CUDA driver fails.
Here every public name is a function that raises when it is called.  Nothing is computed: models
whose CPU path needs no kernel of that package (Llama, Qwen3, Qwen3-MoE in bf16, with
``SGLANG_USE_CPU_ENGINE=1`` and ``--device cpu``; checked with SGLang 0.5.13.post1 and 0.5.23) run,
all others stop with an error that names the kernel that they wanted.

There are no submodules on purpose: SGLang guards imports such as ``sgl_kernel.scalar_type`` and
has a way on without them.
"""

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def kernel(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError(
            f"sgl_kernel.{name} was called, but this host has no CUDA and sgl_kernel is only a "
            "stand-in there: this model, format or backend needs a GPU"
        )

    kernel.__name__ = kernel.__qualname__ = name
    return kernel
