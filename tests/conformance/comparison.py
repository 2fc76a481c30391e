"""Compares a run with asyncio's own, and reads the list of accepted exceptions."""

import dataclasses
import fnmatch
import os
import sysconfig
import tomllib

EXCEPTIONS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exceptions.toml")


@dataclasses.dataclass
class Exemption:
    test: str
    reason: str
    versions: tuple
    used: bool = False
    ran: bool = False

    @property
    def applies(self):
        return not self.versions or sysconfig.get_python_version() in self.versions

    def covers(self, name):
        return self.applies and fnmatch.fnmatchcase(name, self.test)


def read_exceptions(path=EXCEPTIONS):
    with open(path, "rb") as file:
        return exemptions(tomllib.load(file).get("exception", []))


def exemptions(entries):
    return [Exemption(entry["test"], entry["reason"], tuple(entry.get("versions", ()))) for entry in entries]


@dataclasses.dataclass
class Comparison:
    regressions: dict  # name -> Result, or None where the test did not run at all
    accepted: dict  # name -> Exemption
    stale: list
    unsubstituted: list  # modules in which asyncio made loops and the loop under test made none


def compare(baseline, runs, exceptions, type_name):
    """`baseline` and `runs` are {module: ModuleRun}. `type_name` is the name under which loops under test are
    counted.
    """
    regressions, accepted, unsubstituted = {}, {}, []
    for module, run in runs.items():
        ours = run.results
        for name, expected in baseline[module].results.items():
            result = ours.get(name)
            exemption = next((exception for exception in exceptions if exception.covers(name)), None)
            if exemption:
                exemption.ran = True
            if expected.outcome != "pass" or (result is not None and result.outcome == "pass"):
                continue
            if exemption:
                exemption.used = True
                accepted[name] = exemption
            else:
                regressions[name] = result
        for name, result in ours.items():
            if name not in baseline[module].results and not result.good:
                regressions[name] = result
        genuine = baseline[module].loops.get("asyncio.unix_events._UnixSelectorEventLoop", 0)
        if genuine and not run.loops.get(type_name):
            unsubstituted.append(module)
    stale = [exception for exception in exceptions if exception.applies and exception.ran and not exception.used]
    return Comparison(regressions, accepted, stale, unsubstituted)
