"""JAX's own persistent cache of compiled programs, turned on with the first backend, unless the user has set it up.

It is a setting of the process: functions of the user's own `jax.jit` are kept as well.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from tensorgraft import warning_filters
from tensorgraft.backends.jax.compilation import cache_entries
from tensorgraft.hub import compile_cache

# Every program is worth it: the smallest takes 10 ms to compile, 2 ms to load and 6 KB to keep. (JAX's own default is
# 1 s.) JAX's limit of bytes is not used: each write would read the time stamps of all entries, 41 ms where 2,000 are.
_LEAST_SECONDS = 0.0
_JAX_LEAST_SECONDS = 1.0
_ours: str | None = None


@functools.cache
def install() -> None:
    compile_cache.changed.append(_apply)
    _apply()


def _apply() -> None:
    global _ours
    config: Any = jax.config
    current = config.jax_compilation_cache_dir
    if current != _ours or not config.jax_enable_compilation_cache:  # the user's own affair
        return
    path = compile_cache.directory(f"jax-{jax.__version__}")
    path_text = None if path is None else str(path)
    if path_text == current:
        return
    config.update("jax_compilation_cache_dir", path_text)
    before, after = (_LEAST_SECONDS, _JAX_LEAST_SECONDS) if path_text is None else (_JAX_LEAST_SECONDS, _LEAST_SECONDS)
    if config.jax_persistent_cache_min_compile_time_secs == before:
        config.update("jax_persistent_cache_min_compile_time_secs", after)
    if path_text is None:
        compilation_cache.reset_cache()
    else:
        cache_entries.use(path_text)
        # A full disk, an entry that another process is just writing: the program is compiled as if there were no cache.
        warning_filters.ignore("Error (reading|writing) persistent compilation cache entry")
    _ours = path_text
