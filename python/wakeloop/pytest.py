"""A pytest plugin: the tests of pytest-asyncio and of anyio run on wakeloop's event loop.

    pytest -p wakeloop.pytest

A `conftest.py` that has the hook or the fixture below itself takes precedence.
"""

from __future__ import annotations

from typing import Any

import pytest

from .loop import new_event_loop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """What pytest-asyncio makes its loops with."""
    return {"wakeloop": new_event_loop}


class _Anyio:
    """A plugin of its own: it has to be registered after anyio's, whose fixture it replaces."""

    @pytest.fixture(scope="module", params=[pytest.param(("asyncio", {"loop_factory": new_event_loop}), id="wakeloop")])
    @classmethod
    def anyio_backend(cls, request: pytest.FixtureRequest) -> Any:
        """The backend of anyio's tests, and its options."""
        return request.param


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("asyncio") and not hasattr(config.hook, "pytest_asyncio_loop_factories"):
        raise pytest.UsageError("wakeloop.pytest needs pytest-asyncio 1.4 or newer")
    config.pluginmanager.register(_Anyio(), "wakeloop.pytest.anyio")
