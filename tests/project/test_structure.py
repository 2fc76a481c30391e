"""The structure check of `make lint`: the tree passes, and a planted violation of each kind does not."""

import shutil
import textwrap
from pathlib import Path

import pytest

from tests.structure.attempts import attempts
from tests.structure.package import check_package
from tests.structure.rules import Rules, Source, check, namesakes
from tests.structure.rust import read_crate, uses

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
STRUCTURE = ROOT / "tests" / "structure" / "structure.toml"


@pytest.fixture
def src(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    return tmp_path / "src"


@pytest.fixture
def python(tmp_path):
    shutil.copytree(ROOT / "python", tmp_path / "python", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path / "python"


def append(file: Path, code: str) -> int:
    """Adds a line to the end of a file; returns its number."""
    text = file.read_text()
    file.write_text(f"{text}{code}\n")
    return text.count("\n") + 1


def problems(src: Path, rules: Rules | None = None) -> str:
    return "\n".join(check(src, rules or Rules.read(STRUCTURE)))


def crate(folder: Path, **files: str) -> Path:
    """Writes a crate; `a__b` stands for `a/b.rs`, and modules of the crate need no declaration."""
    rooms = sorted({name.split("__")[0] for name in files})
    (folder / "lib.rs").write_text("".join(f"mod {room};\n" for room in rooms))
    for name, text in files.items():
        file = folder / (name.replace("__", "/") + ".rs")
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return folder


def used_by(folder: Path, file: str) -> dict[str, list[int]]:
    """What a file uses, and in which lines."""
    found: dict[str, set[int]] = {}
    for user, line, used in uses(read_crate(folder / "lib.rs")):
        if user == folder / file:
            found.setdefault(str(used.relative_to(folder)), set()).add(line)
    return {used: sorted(lines) for used, lines in found.items()}


def test_the_tree_keeps_the_rules():
    assert problems(ROOT / "src") == ""
    assert list(check_package(ROOT / "python")) == []
    assert list(attempts(ROOT / "tests", Rules.read(STRUCTURE).attempts)) == []


def test_an_import_from_a_higher_floor_is_named(src):
    line = append(src / "timer" / "mod.rs", "use crate::runtime::Runtime;")
    assert f"upward: src/timer/mod.rs:{line} uses src/runtime/handle.rs" in problems(src)


def test_a_path_in_code_to_a_room_of_the_same_floor_is_named(src):
    line = append(src / "kernel" / "mod.rs", "fn f() { crate::runtime::block_on(async {}) }")
    assert f"upward: src/kernel/mod.rs:{line} uses src/runtime/block_on.rs" in problems(src)


def test_a_room_without_a_floor_is_named(src):
    (src / "attic.rs").write_text("")
    append(src / "lib.rs", "mod attic;")
    assert problems(src) == "without a floor in structure.toml: attic"


def test_a_cycle_of_two_files_is_named(src):
    append(src / "transport" / "mod.rs", "mod one;\nmod two;")
    (src / "transport" / "one.rs").write_text("use super::two::f;\n")
    (src / "transport" / "two.rs").write_text("\nuse super::one;\nfn f() { one::g() }\n")
    found = problems(src)
    assert "cycle in transport:" in found
    assert "src/transport/one.rs:1 uses src/transport/two.rs" in found
    assert "src/transport/two.rs:2,3 uses src/transport/one.rs" in found


def test_a_child_that_uses_its_own_mod_rs_closes_a_cycle(src):
    line = append(src / "event_loop" / "mod.rs", "mod child;\nconst LIMIT: usize = 1;")
    (src / "event_loop" / "child.rs").write_text("use super::LIMIT;\n")
    found = problems(src)
    assert f"src/event_loop/mod.rs:{line} uses src/event_loop/child.rs" in found
    assert "src/event_loop/child.rs:1 uses src/event_loop/mod.rs" in found


def test_a_sibling_taken_through_the_mod_rs_closes_a_cycle(src):
    append(src / "transport" / "mod.rs", "mod one;\nmod two;\npub(crate) use two::Two;")
    (src / "transport" / "one.rs").write_text("use crate::transport::Two;\n")
    (src / "transport" / "two.rs").write_text("pub(crate) struct Two;\n")
    assert "src/transport/one.rs:1 uses src/transport/mod.rs" in problems(src)


def test_four_bools_are_named(src):
    append(src / "transport" / "mod.rs", "mod one;")
    (src / "transport" / "one.rs").write_text(
        "struct Three { a: bool, b: Cell<bool>, c: Option<bool>, d: fn(bool) }\n"
        "struct Four<'a, T: 'a> where T: Fn(bool) { a: bool, pub b: Cell<bool>, c: AtomicBool, d: &'a bool, e: T }\n"
        "struct Tuple(bool, u8, Cell<bool>, bool, pub(crate) bool);\n"
    )
    found = problems(src)
    assert "bools: src/transport/one.rs:2 Four has 4, at most 3 are allowed: a, b, c, d" in found
    assert "bools: src/transport/one.rs:3 Tuple has 4, at most 3 are allowed: 0, 2, 3, 4" in found
    assert "Three" not in found


def test_four_types_of_one_name_are_named(tmp_path):
    folder = crate(
        tmp_path,
        a="struct State; struct Other; mod b { union State { x: u8, y: i8 } enum Other { State } }",
        c="fn f() { enum State { On, Off } let union = 1; } type Other = u8; trait T { type Other; }",
        d="#[cfg(test)] mod tests { struct State; }",
    )
    assert list(namesakes(Source.read(folder))) == []
    line = append(folder / "d.rs", "struct State<T>(T);")
    assert list(namesakes(Source.read(folder))) == [
        "names: 4 types are called State, at most 3 may be: "
        f"src/a.rs:1, src/a.rs:1, src/c.rs:1, src/d.rs:{line}"
    ]


def test_a_name_that_the_tree_gives_to_four_types_is_named(src):
    for file in ("clock.rs", "fork.rs", "memory.rs", "wait_queue.rs"):
        append(src / file, "struct Planted;")
    assert "names: 4 types are called Planted, at most 3 may be: src/clock.rs:" in problems(src)


def test_a_known_violation_that_is_gone_is_named(src):
    append(src / "transport" / "mod.rs", "mod one;")
    (src / "transport" / "one.rs").write_text("")
    rules = Rules.read(STRUCTURE)
    rules.upward.append(("timer/mod.rs", "runtime/mod.rs"))
    # This one exists, but is part of no cycle.
    rules.cycles.append(("transport/mod.rs", "transport/one.rs"))
    rules.bools.append("transport/mod.rs Gone")
    found = problems(src, rules)
    assert 'delete "timer/mod.rs -> runtime/mod.rs" from known.upward' in found
    assert 'delete "transport/mod.rs -> transport/one.rs" from known.cycles' in found
    assert 'delete "transport/mod.rs Gone" from known.bools' in found


def test_comments_strings_and_tests_do_not_count(tmp_path):
    folder = crate(
        tmp_path,
        low='''
            //! crate::high::f
            /* use crate::high::f; /* nested */ use crate::high::f; */
            const S: &str = "use crate::high::f; \\" crate::high::f()";
            const R: &str = r#"crate::high::f() " "#;
            const Q: char = '"'; const P: char = '\\''; fn g<'a>(_: &'a str) {}
            #[cfg(test)]
            use crate::high::{f};
            #[cfg(all(test, feature = "x"))]
            mod tests { use crate::high::f; }
            #[cfg(wakeloop_fuzz)]
            pub(crate) fn h() -> Vec<u8> { crate::high::f() }
            struct S { #[cfg(test)] pub a: crate::high::F, b: u8 }
            pub(in crate::low) fn after() {}
        ''',
        high="",
    )
    assert used_by(folder, "low.rs") == {}


def test_code_for_other_configurations_counts(tmp_path):
    folder = crate(
        tmp_path,
        low="""
            #[cfg(any(test, feature = "x"))]
            use crate::high::f;
            #[cfg(not(test))]
            use crate::high::g;
            macro_rules! m { () => { $crate::high::h() } }
        """,
        high="",
    )
    assert used_by(folder, "low.rs") == {"high.rs": [3, 5, 6]}


def test_use_trees_and_renames_are_followed(tmp_path):
    folder = crate(
        tmp_path,
        user="""
            use crate::{a::{self, f, deep::{g as h}}, b as renamed};
            fn f() {
                renamed::f();
                a::f();
            }
            mod inline {
                use super::super::c::*;
                fn f() { super::renamed::g() }
            }
        """,
        a__mod="pub mod deep;",
        a__deep="",
        b="",
        c="",
    )
    assert used_by(folder, "user.rs") == {
        "a/mod.rs": [2, 5],
        "a/deep.rs": [2],
        "b.rs": [2, 4, 9],
        "c.rs": [8],
    }


def test_a_name_counts_for_the_file_that_defines_it(tmp_path):
    folder = crate(
        tmp_path,
        user="""
            use crate::room::Name;
            use crate::room;
            fn f() { room::other() }
            fn g() { crate::macro_of_the_crate!() }
        """,
        room__mod="mod one;\nmod two;\npub use one::{Inner as Name};\npub use self::two::*;\n",
        room__one="pub struct Inner;",
        room__two="pub use super::one::other;\n#[macro_export]\nmacro_rules! macro_of_the_crate { () => {} }",
    )
    assert used_by(folder, "user.rs") == {"room/one.rs": [2, 4], "room/two.rs": [5]}


def test_a_cycle_of_python_modules_is_named(python):
    append(python / "wakeloop" / "loop.py", "from . import policy")
    found = "\n".join(check_package(python))
    assert "No cycles are allowed in wakeloop." in found
    assert ".policy -> .loop" in found


def test_a_python_module_that_imports_a_higher_one_is_named(python):
    line = append(python / "wakeloop" / "loop.py", "from .policy import install")
    assert f"wakeloop.loop -> wakeloop.policy (l.{line})" in "\n".join(check_package(python))


def test_an_import_for_type_checkers_counts(python):
    line = append(python / "wakeloop" / "loop.py", "if TYPE_CHECKING: from .policy import install")
    assert f"wakeloop.loop -> wakeloop.policy (l.{line})" in "\n".join(check_package(python))


def test_a_python_module_that_imports_from_the_package_itself_is_named(python):
    line = append(python / "wakeloop" / "policy.py", "from . import _core, EventLoop")
    assert f"cycle: wakeloop/policy.py:{line} imports EventLoop from wakeloop/__init__.py" in list(check_package(python))


def test_a_python_package_that_imports_a_higher_one_is_named(python):
    line = append(python / "wakeloop" / "_loop" / "wakeup.py", "def f():\n    from .._net import tls") + 1
    found = "\n".join(check_package(python))
    assert "wakeloop._loop is not allowed to import wakeloop._net" in found
    assert f"wakeloop._loop.wakeup -> wakeloop._net.tls (l.{line})" in found


def test_a_cycle_of_modules_in_a_python_package_is_named(python):
    append(python / "wakeloop" / "_observe" / "registry.py", "from . import exposition")
    found = "\n".join(check_package(python))
    assert "No cycles are allowed in wakeloop._observe." in found
    assert ".exposition -> .registry" in found or ".registry -> .exposition" in found


def test_a_python_module_that_imports_from_a_package_that_imports_it_is_named(python):
    line = append(python / "wakeloop" / "_files" / "text_buffer.py", "from . import open")
    assert (
        f"cycle: wakeloop/_files/text_buffer.py:{line} imports open from wakeloop/_files/__init__.py"
        in list(check_package(python))
    )


def test_an_init_that_imports_a_module_which_builds_on_it_is_named(python):
    append(python / "wakeloop" / "_loop" / "__init__.py", "from .stepping import run_once")
    found = "\n".join(check_package(python))
    assert "imports LoopState from wakeloop/_loop/__init__.py" in found
    assert "cycle: wakeloop/_loop/selector.py" in found and "cycle: wakeloop/_loop/debug.py" not in found


def test_a_python_module_without_a_floor_is_named(python):
    (python / "wakeloop" / "_attic.py").write_text("")
    assert "_attic" in "".join(check_package(python))


# -- attempts --------------------------------------------------------------------------------------------------------

#: A test that is satisfied with one good attempt, in each form that is found.
SECOND_CHANCES = {
    "a loop that a good round leaves": """
        def test_x():
            for _ in range(20):
                if measured() < 0.5:
                    return
            raise AssertionError
    """,
    "a break behind an inner loop": """
        async def test_x():
            async def main():
                for _ in range(ROUNDS - 1):
                    for each in measured():
                        continue
                    with contextlib.suppress(AssertionError):
                        check()
                        break
    """,
    "a parameter that says how often": """
        def test_x(times=3):
            for attempt in range(times):
                if check():
                    return
    """,
    "an attribute that says how often": """
        def test_x(self):
            for _ in range(self._retries):
                if check():
                    break
    """,
    "limits that grow": """
        def test_x():
            for limit in (0.05, 0.2, 0.8):
                if check(limit):
                    break
    """,
    "any of several rounds": """
        def test_x():
            assert any(check() for _ in range(10))
    """,
    "a counter of tries": """
        def test_x():
            tries = 0
            while tries < 10 and not check():
                tries += 1
    """,
    "results that are looked at one by one": """
        def test_x():
            medians = [measure()]
            while len(medians) < 20 and medians[-1] >= 0.0009:
                medians.append(measure())
    """,
    "a marker": """
        @pytest.mark.flaky(reruns=3)
        def test_x():
            check()
    """,
    "any of a range in Rust": """
        fn test_x() {
            assert!((0..ATTEMPTS).any(|_| check() < 0.5));
        }
    """,
    "a loop in Rust": """
        fn test_x() {
            for _ in 0..20 {
                loop { break; }
                if check() { return; }
            }
        }
    """,
}

#: Loops that are no attempts.
OTHER_LOOPS = {
    "a wait": """
        def test_x():
            while not check():
                time.sleep(0.01)
    """,
    "every round counts": """
        def test_x():
            for _ in range(20):
                assert check()
                for each in rows:
                    break
    """,
    "a search": """
        def test_x():
            for number in range(20):
                if number in found:
                    break
    """,
    "a function inside": """
        def test_x():
            for _ in range(20):
                def inner():
                    return 1
    """,
    "a loop in Rust where every round counts": """
        fn test_x() {
            for _ in 0..20 {
                loop { break; }
                check();
            }
            assert!(list.iter().any(|one| one.is_good()));
        }
    """,
}


def planted(folder: Path, name: str, code: str) -> list[str]:
    tests = folder / "tests"
    tests.mkdir()
    (tests / ("test_x.rs" if "Rust" in name else "test_x.py")).write_text(textwrap.dedent(code))
    return list(attempts(tests))


@pytest.mark.parametrize("name", SECOND_CHANCES)
def test_a_test_with_a_second_chance_is_named(tmp_path, name):
    (problem,) = planted(tmp_path, name, SECOND_CHANCES[name])
    assert problem.startswith("attempts: tests/test_x.")
    assert "is satisfied with one good attempt of several" in problem


@pytest.mark.parametrize("name", OTHER_LOOPS)
def test_a_loop_that_is_no_second_chance_is_not_named(tmp_path, name):
    assert planted(tmp_path, name, OTHER_LOOPS[name]) == []


def test_an_allowed_loop_of_attempts_that_is_gone_is_named(tmp_path):
    (tmp_path / "tests").mkdir()
    assert list(attempts(tmp_path / "tests", ["tests/test_x.py test_x"])) == [
        'gone: delete "tests/test_x.py test_x" from known.attempts in structure.toml'
    ]
