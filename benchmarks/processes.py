"""``wakeloop.demo.processes`` without the package around it: see its head."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wakeloop.demo.processes import Child, ChildError, cores, die_with_parent, load_process, pin, run_load
else:
    import importlib.util
    from pathlib import Path

    _file = Path(__file__).parent.parent / "python" / "wakeloop" / "demo" / "processes.py"
    _spec = importlib.util.spec_from_file_location("processes_of_the_demo", _file)
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
    Child, ChildError, cores = _module.Child, _module.ChildError, _module.cores
    die_with_parent, load_process = _module.die_with_parent, _module.load_process
    pin, run_load = _module.pin, _module.run_load

__all__ = ["Child", "ChildError", "cores", "die_with_parent", "load_process", "pin", "run_load"]
