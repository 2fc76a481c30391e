"""Modules that need another package say which, and how it is installed."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.native

MODULES = {
    "prometheus": ("prometheus_client", "prometheus-client: pip install wakeloop[prometheus]"),
    "opentelemetry": ("opentelemetry", "opentelemetry-api: pip install wakeloop[opentelemetry]"),
    "gunicorn": ("uvicorn_worker", "gunicorn and uvicorn-worker: pip install gunicorn uvicorn-worker"),
    "testing.hypothesis": ("hypothesis", "hypothesis: pip install hypothesis"),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_without_its_package_names_what_to_install(module):
    package, said = MODULES[module]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys([{package!r}, 'uvicorn']))\n"
        f"import wakeloop\n"
        f"try: import wakeloop.{module}\n"
        f"except ModuleNotFoundError as error: print(error, type(error.__cause__).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == f"wakeloop.{module} needs {said} ModuleNotFoundError\n", done.stderr


def test_the_live_screen_without_rich_names_the_extra():
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "sys.argv[1:] = ['top', str(__import__('os').getpid())]\n"
        "import runpy, wakeloop; wakeloop.admin()\n"
        "runpy.run_module('wakeloop', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("wakeloop: the live screen needs rich: pip install wakeloop[top]"), done.stderr
