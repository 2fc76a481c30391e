"""The pytest plugin of wakeloop.testing: the marker `wakeloop`, its options, and fixtures.

pytest imports this module in every run where wakeloop is installed, because it is an entry point. So it lies beside the
package, and imports wakeloop only when a test asks for it: a run that does not use the marker is as it was before.
"""

import argparse
import functools
import inspect
import os

import pytest

#: The parameter that holds the seed of a test that the plugin runs itself.
SEED = "_wakeloop_seed"
#: Arguments of the marker that are not for the loop.
NOT_THE_LOOPS = ("check", "debug", "explore")
#: The seed with which an exploration has failed.
FAILED = pytest.StashKey()
#: The fixtures of the plugin that a plain function may use.
FIXTURES = {"wakeloop_loop", "wakeloop_clock", "wakeloop_network", "wakeloop_loop_factory"}


def pytest_addoption(parser):
    group = parser.getgroup("wakeloop", "tests with the marker wakeloop")
    group.addoption(
        "--wakeloop-seeds",
        type=functools.partial(_number, least=1),
        metavar="N",
        help="run each test that has the marker wakeloop, and no seed of its own, with N seeds: 0 to N - 1",
    )
    group.addoption(
        "--wakeloop-seed",
        type=functools.partial(_number, least=0),
        metavar="SEED",
        help="run each of these tests, and those that explore, once with this seed",
    )


def _number(text, least):
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return number


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "wakeloop(seed=None, clock='auto', network=None, patch_time=False, explore=None, ...): run this test on a loop of"
        " wakeloop.testing. The arguments are those of wakeloop.testing.run; explore=N searches N orders for a failure",
    )
    if config.getoption("wakeloop_seed") is not None and config.getoption("wakeloop_seeds") is not None:
        raise pytest.UsageError("give --wakeloop-seed or --wakeloop-seeds, not both")


# -- the options of a test -------------------------------------------------------------------------------------------


def _marker(item):
    """The arguments of a test's markers, of which the closest one counts; None without a marker."""
    markers = list(item.iter_markers("wakeloop"))
    if not markers:
        return None
    known = _known_arguments()
    options = {}
    for marker in reversed(markers):
        unknown = [repr(each) for each in marker.args] + [name for name in marker.kwargs if name not in known]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: the marker wakeloop has no such arguments: {', '.join(unknown)}")
        options.update(marker.kwargs)
    return options


@functools.cache
def _known_arguments():
    from wakeloop import testing

    return {*inspect.signature(testing.run).parameters, "explore"} - {"main", "schedule"}


def _parameters(item):
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


def _options(item, *without):
    """The arguments of the marker, with the seed that this run of the test has."""
    options = {name: value for name, value in _marker(item).items() if name not in without}
    if SEED in _parameters(item):
        options["seed"] = _parameters(item)[SEED]
    return options


def _seeds(item):
    """The seeds of a test from the command line; None if it runs once, with that of its marker or with none."""
    options, config = _marker(item), item.config
    seed, count = config.getoption("wakeloop_seed"), config.getoption("wakeloop_seeds")
    if seed is not None and ("seed" not in options or "explore" in options):
        return [seed]
    if count is None or "seed" in options or "explore" in options:
        return None
    return range(count)


def _make_loop(*, network=None, **options):
    from wakeloop import testing

    # A network belongs to one loop. So a marker may have the function that makes it.
    return testing.EventLoop(network=network() if callable(network) else network, **options)


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
    if "explore" in _marker(item):
        raise pytest.UsageError(f"{item.nodeid}: explore is for tests that neither anyio nor pytest-asyncio runs")
    factory = functools.partial(_make_loop, **_options(item, *NOT_THE_LOOPS))
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
    __tracebackhide__ = True
    if _marker(pyfuncitem) is None or "anyio_backend" in pyfuncitem.funcargs:
        return None
    function = pyfuncitem.obj
    if given := getattr(function, "hypothesis", None):
        inner = getattr(given.inner_test, "_wakeloop_inner", given.inner_test)
        if inspect.iscoroutinefunction(inner):
            given.inner_test = _example(pyfuncitem, inner)
        else:
            _check_plain(pyfuncitem)
        return None
    if not inspect.iscoroutinefunction(function):
        return _check_plain(pyfuncitem)
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _run(pyfuncitem, function, **arguments)
    return True


def _check_plain(item):
    """Fails the test of a plain function that uses nothing of the plugin: the marker would do nothing."""
    # Other plugins put a plain function around a coroutine function.
    inner = inspect.unwrap(item.obj)
    if FIXTURES.isdisjoint(item.fixturenames) and not inspect.iscoroutinefunction(inner):
        pytest.fail(f"{item.name} has the marker wakeloop, and is no async def: nothing of it would run", pytrace=False)


def _example(item, inner):
    """Runs one example of Hypothesis's."""

    @functools.wraps(inner)
    def example(*arguments, **named):
        __tracebackhide__ = True
        _run(item, inner, *arguments, **named)

    example._wakeloop_inner = inner
    return example


def _run(item, function, *arguments, **named):
    __tracebackhide__ = True
    from wakeloop import testing

    options, main = _options(item), functools.partial(function, *arguments, **named)
    runs = options.pop("explore", None)
    if runs is not None and SEED not in _parameters(item):
        found = testing.explore(main, runs, options.pop("seed", 0), **options)
        if found.failure is not None:
            item.stash[FAILED] = found.failure.seed
        found.check()
        return
    loop = item.funcargs.get("wakeloop_loop") or _make_loop(**_options(item, *NOT_THE_LOOPS))
    testing.run_on(loop, main, check=options.get("check", True), debug=options.get("debug"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    is_ours = call.when == "call" and call.excinfo is not None and item.get_closest_marker("wakeloop") is not None
    if is_ours and not item.config.getoption("fulltrace"):
        _hide_frames(item, call.excinfo)
    report = yield
    if is_ours and report.failed:
        seed = _seed_of(item)
        again = f"pytest '{item.nodeid}'" + ("" if seed is None else f" --wakeloop-seed={seed}")
        report.sections.append(("wakeloop", f"to run it again: {again}"))
    return report


def _hide_frames(item, excinfo):
    """Leaves out the frames of asyncio and of wakeloop, if an error comes from the loop and not from the test."""
    import asyncio

    import wakeloop

    if any(entry.path == item.path for entry in excinfo.traceback):
        return
    hidden = tuple(os.path.join(os.path.dirname(package.__file__), "") for package in (asyncio, wakeloop))
    excinfo.traceback = excinfo.traceback.filter(lambda entry: not str(entry.path).startswith(hidden))


def _seed_of(item):
    """The seed with which a test has run, on a loop of the plugin or of another one, if the marker does not have it."""
    parameters = _parameters(item)
    if FAILED in item.stash:
        return item.stash[FAILED]
    if SEED in parameters:
        return parameters[SEED]
    factory = parameters.get("_asyncio_loop_factory")
    if isinstance(backend := parameters.get("anyio_backend"), tuple):
        factory = backend[1].get("loop_factory")
    is_ours = isinstance(factory, functools.partial) and factory.func is _make_loop
    return factory.keywords.get("seed") if is_ours else None


# -- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def wakeloop_loop(request):
    """The loop on which a test with the marker wakeloop runs."""
    item = request.node
    options = _marker(item)
    if options is None:
        raise pytest.UsageError(f"{item.nodeid}: wakeloop_loop is for tests with the marker wakeloop")
    if not {"anyio_backend", "_asyncio_loop_factory"}.isdisjoint(item.fixturenames) or "explore" in options:
        raise pytest.UsageError(f"{item.nodeid}: wakeloop_loop is for tests that run once, by the plugin itself")
    loop = _make_loop(**_options(item, *NOT_THE_LOOPS))
    yield loop
    loop.close()


@pytest.fixture
def wakeloop_clock(wakeloop_loop):
    """The clock of the test's loop."""
    return wakeloop_loop.clock


@pytest.fixture
def wakeloop_network(wakeloop_loop):
    """The simulated network of the test's loop."""
    if wakeloop_loop.network is None:
        raise pytest.UsageError("wakeloop_network needs a network: @pytest.mark.wakeloop(network=Network)")
    return wakeloop_loop.network


@pytest.fixture
def wakeloop_loop_factory(request):
    """Makes loops as the marker of the test says, for code that makes its own loop, as `asyncio.Runner` does."""
    options = {} if _marker(request.node) is None else _options(request.node, *NOT_THE_LOOPS)
    return functools.partial(_make_loop, **options)
