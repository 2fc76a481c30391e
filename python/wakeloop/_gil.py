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


# The first loop refuses a wrong value.
if (
    os.environ[_VARIABLE].strip() == "1"
    and not sys.flags.ignore_environment
    and sys.version_info >= (3, 13)
    and not sys._is_gil_enabled()
):
    _load()
