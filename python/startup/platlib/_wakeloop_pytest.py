"""The pytest plugin of wakeloop.testing: the marker `wakeloop`, its options, and fixtures.

pytest imports this module in every run where wakeloop is installed, because it is an entry point. So it lies beside the
package, and imports wakeloop only when a test asks for it: a run that does not use the marker is as it was before.
"""

import functools
import inspect

import pytest

OPTIONS = ("seed", "clock", "network", "patch_time", "check", "debug", "while_waiting", "explore")
#: Those that are not for the loop.
OF_THE_RUN = ("check", "debug", "explore")
SEED = "_wakeloop_seed"


def pytest_addoption(parser):
    group = parser.getgroup("wakeloop", "tests with the marker wakeloop")
    group.addoption(
        "--wakeloop-seeds",
        type=_positive,
        metavar="N",
        help="run each test that has the marker wakeloop, and no seed of its own, with N seeds: 0 to N - 1",
    )
    group.addoption("--wakeloop-seed", type=_natural, metavar="SEED", help="run each test that has the marker with this seed")


def _natural(text):
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _positive(text):
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "wakeloop(seed=None, clock='auto', network=None, patch_time=False, explore=None, ...): run this test on a loop of"
        " wakeloop.testing; the arguments are those of wakeloop.testing.run",
    )
    if config.getoption("wakeloop_seed") is not None and config.getoption("wakeloop_seeds") is not None:
        raise pytest.UsageError("give --wakeloop-seed or --wakeloop-seeds, not both")


# -- the options of a test -------------------------------------------------------------------------------------------


def _marker(item):
    """The options of a test's marker, the closest one first; None without a marker."""
    options = None
    for marker in item.iter_markers("wakeloop"):
        unknown = [str(each) for each in marker.args] + [name for name in marker.kwargs if name not in OPTIONS]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: unknown arguments of the marker wakeloop: {', '.join(unknown)}")
        options = {**marker.kwargs, **(options or {})}
    return options


def _options(item):
    """What the test's loop is made with: its marker, and the seed that this run of the test has."""
    options = dict(_marker(item) or {})
    options.pop("explore", None)
    if (seed := _parameters(item).get(SEED)) is not None:
        options["seed"] = seed
    return options


def _parameters(item):
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


def _seeds(item):
    """The seeds of a test on the command line; None if it runs once, with that of its marker or with none."""
    options, config = _marker(item), item.config
    if options is None or "seed" in options or "explore" in options:
        return None
    if (seed := config.getoption("wakeloop_seed")) is not None:
        return [seed]
    count = config.getoption("wakeloop_seeds")
    return None if count is None else range(count)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc):
    definition, config = metafunc.definition, metafunc.config
    marked = _marker(definition) is not None
    if marked and "anyio_backend" in metafunc.fixturenames:
        _parametrize_anyio(metafunc)
    elif marked and hasattr(config.hook, "pytest_asyncio_loop_factories"):
        _register_factories(config)
    result = yield
    others = {"anyio_backend", "_asyncio_loop_factory"}
    if marked and others.isdisjoint(metafunc.fixturenames) and (seeds := _seeds(definition)) is not None:
        metafunc.fixturenames.append(SEED)
        metafunc.parametrize(SEED, seeds, ids=[f"seed{seed}" for seed in seeds])
    return result


# -- tests of anyio and of pytest-asyncio: they make the loop with our factory ---------------------------------------


def _factories(item):
    """The loop factories of a test, by the names of their parameters."""
    from wakeloop import testing

    if "explore" in _marker(item):
        raise pytest.UsageError(f"{item.nodeid}: explore is for tests that neither anyio nor pytest-asyncio runs")
    options = {name: value for name, value in _options(item).items() if name not in OF_THE_RUN}
    factory = functools.partial(testing.EventLoop, **options)
    seeds = _seeds(item)
    if seeds is None:
        return {"wakeloop": factory}
    return {f"seed{seed}": functools.partial(factory, seed=seed) for seed in seeds}


def _parametrize_anyio(metafunc):
    factories = _factories(metafunc.definition)
    backends = [("asyncio", {"loop_factory": factory}) for factory in factories.values()]
    # By a mark: it takes precedence over the parameters of the fixture.
    metafunc.definition.add_marker(pytest.mark.parametrize("anyio_backend", backends, ids=list(factories)))


class _Factories:
    """The hook of pytest-asyncio. It is there only if a test needs it, because it then applies to all of them."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_asyncio_loop_factories(self, config, item):
        return None if _marker(item) is None else _factories(item)


class _Others:
    """What pytest-asyncio does without the hook, for the tests without our marker."""

    @pytest.hookimpl(trylast=True)
    def pytest_asyncio_loop_factories(self, config, item):
        import asyncio

        return {"asyncio": asyncio.new_event_loop}


def _register_factories(config):
    if not config.pluginmanager.has_plugin("wakeloop.factories"):
        config.pluginmanager.register(_Factories(), "wakeloop.factories")
        config.pluginmanager.register(_Others(), "wakeloop.others")


# -- the others: the plugin runs them itself -------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if _marker(pyfuncitem) is None or "anyio_backend" in pyfuncitem.funcargs:
        return None
    function = pyfuncitem.obj
    if given := getattr(function, "hypothesis", None):
        inner = getattr(given.inner_test, "_wakeloop_inner", given.inner_test)
        if inspect.iscoroutinefunction(inner):
            # Hypothesis calls the function once for each example.
            given.inner_test = functools.partial(_run, pyfuncitem, inner)
            given.inner_test._wakeloop_inner = inner
        return None
    if not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _run(pyfuncitem, function, **arguments)
    return True


def _run(item, function, **arguments):
    from wakeloop import testing

    options, main = _options(item), functools.partial(function, **arguments)
    if runs := _marker(item).get("explore"):
        seed = options.pop("seed", 0)
        testing.explore(main, runs, seed, **options).check()
    else:
        if "wakeloop_network" in item.fixturenames:
            options["network"] = item.funcargs["wakeloop_network"]
        testing.run(main, **options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and call.when == "call" and (seed := _seed_of(item)) is not None:
        report.sections.append(("wakeloop", f"seed {seed}; to run it again: pytest '{item.nodeid}' --wakeloop-seed={seed}"))
    return report


def _seed_of(item):
    """The seed with which a test has run, whoever made its loop."""
    parameters = _parameters(item)
    if SEED in parameters:
        return parameters[SEED]
    factory = parameters.get("_asyncio_loop_factory")
    if isinstance(backend := parameters.get("anyio_backend"), tuple):
        factory = backend[1].get("loop_factory")
    return getattr(factory, "keywords", {}).get("seed")


# -- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def wakeloop_loop_factory(request):
    """Makes loops as the marker of the test says: for code that makes its own, such as `asyncio.Runner`."""
    from wakeloop import testing

    options = {name: value for name, value in _options(request.node).items() if name not in OF_THE_RUN}

    return functools.partial(testing.EventLoop, **options)
