"""WAKELOOP_GIL: whether a free-threaded interpreter runs this process with the GIL. Imported if the variable is set."""

import os
import sys
import warnings
from importlib.util import find_spec, module_from_spec, spec_from_file_location

_VARIABLE = "WAKELOOP_GIL"
_NAME = "wakeloop._with_gil"


def _load() -> None:
    """Loads the extension module that asks for the GIL: only an extension module can turn it on. PYTHON_GIL=0 wins."""
    core = find_spec("wakeloop._core")
    if core is None or core.origin is None:
        return  # The import of it says what is wrong.
    spec = spec_from_file_location(_NAME, core.origin)
    assert spec is not None and spec.loader is not None
    with warnings.catch_warnings():
        # The interpreter warns that a module has turned the GIL on, and says how to keep it off.
        warnings.simplefilter("ignore", RuntimeWarning)
        spec.loader.exec_module(module_from_spec(spec))


def _apply(value: str) -> None:
    if value not in ("", "0", "1"):
        warnings.warn(f"{_VARIABLE} must be 0 or 1", RuntimeWarning, stacklevel=3)
    elif value == "1" and sys.version_info >= (3, 13) and not sys._is_gil_enabled():
        _load()


_apply(os.environ[_VARIABLE].strip())
