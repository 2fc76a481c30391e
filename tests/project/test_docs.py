"""README, CONTRIBUTING and docs/: links lead somewhere, and the files and tests that they name exist.

tests/project/test_guides.py runs their code; `make docs` builds the site from them.
"""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.support.pages import DOCS, FENCE, PAGES, ROOT, name

pytestmark = pytest.mark.native

COMPATIBILITY = DOCS / "explanation" / "compatibility.md"
ARCHITECTURE = DOCS / "explanation" / "architecture.md"
FREE_THREADING = DOCS / "explanation" / "free-threading.md"

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text):
    """Returns the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or anchor and anchor not in anchors(file.read_text()):
            broken.append(target)
    assert broken == []


def test_every_page_is_listed_in_the_table_of_contents():
    listed = {line for block in FENCE.findall((DOCS / "index.md").read_text()) for line in block[3].splitlines()}
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if page.is_relative_to(DOCS)}
    assert pages - listed == {"index"}


def test_every_example_is_on_a_page_of_examples():
    pages = (DOCS / "examples").glob("*.md")
    shown = {path for page in pages for path in re.findall(r"^```\{source\} \.\./\.\./(\S+)$", page.read_text(), re.MULTILINE)}
    programs = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".rs")}
    assert {path for path in programs if "/target/" not in path} - shown == set()


def test_the_readme_has_at_most_180_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


def test_every_make_target_in_the_docs_exists():
    targets = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z0-9.-]+)", page.read_text())}
    assert named - targets == set()


def test_every_make_target_is_described_in_development():
    page = (DOCS / "development.md").read_text()
    described = re.findall(r"^([a-z0-9.-]+):.*#[#-] ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [target for target in described if f"`make {target}`" not in page] == ["help"]


def test_every_file_named_on_the_architecture_page_exists():
    named = re.findall(r"`((?:src|python|tests|benchmarks|docs)/[\w./-]*)`", ARCHITECTURE.read_text())
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_room_of_src_is_on_the_architecture_page():
    page = ARCHITECTURE.read_text()
    rooms = [path.stem for path in (ROOT / "src").iterdir() if path.name not in ("lib.rs", "module.rs")]
    assert [room for room in rooms if f"`src/{room}" not in page] == []


def test_the_floors_of_the_python_package_are_those_that_the_structure_check_knows():
    rows = re.findall(r"^\| (\d) \| ((?:`\w+`(?:, )?)+) \|", ARCHITECTURE.read_text(), re.MULTILINE)
    page = {name: int(floor) for floor, names in rows for name in re.findall(r"`(\w+)`", names)}
    linter = tomllib.loads((ROOT / "tests/structure/importlinter.toml").read_text())["tool"]["importlinter"]
    floors = enumerate(reversed(linter["contracts"][0]["layers"]), 1)
    assert page == {name: floor for floor, names in floors for name in names.split(" | ")}


# -- the compatibility page ------------------------------------------------------------------------------------------


def rows():
    for line in COMPATIBILITY.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 8 and "wakeloop" not in cells:
            yield cells


def test_every_row_of_the_compatibility_page_is_kept_and_names_its_tests():
    table = list(rows())
    assert len(table) > 50
    for feature, *others, ours, tests in table:
        assert ours.strip() == "Y", feature
        assert all(answer in "YPN" for answer in others), feature
        assert re.fullmatch(r"`test_\w+`(, `test_\w+`)*", tests.rstrip(" |")), feature


@pytest.mark.timeout(120)
def test_every_test_named_in_the_docs_is_collected():
    sources = {path: path.read_text() for path in (ROOT / "tests").glob("*/test_*.py")}
    wanted = {test for page in PAGES for test in re.findall(r"`(test_\w+)`", page.read_text())}
    files = [path for path, text in sources.items() if any(f"def {test}(" in text for test in wanted)]
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header", *map(str, files)]
    collected = set()
    # `make test` runs the ones, and `make measure` the others.
    for option in ([], ["--measured"]):
        listing = subprocess.run(line + option, capture_output=True, text=True, timeout=100, cwd=ROOT)
        assert listing.returncode == 0, listing.stdout[-2000:]
        collected |= set(re.findall(r"::(test_\w+)", listing.stdout))
    assert not wanted - collected, f"named in the docs, but not a test: {sorted(wanted - collected)}"


def test_the_table_of_the_environment_has_every_variable_of_the_source():
    sources = [*(ROOT / "src").rglob("*.rs"), *(ROOT / "python").rglob("*.py")]
    named = {variable for path in sources for variable in re.findall(r"\bWAKELOOP(?:_[A-Z]+)*\b", path.read_text())}
    rows = re.findall(r"^\| (`[^|]*`) \|", (DOCS / "reference" / "environment.md").read_text(), re.MULTILINE)
    listed = {variable for row in rows for variable in re.findall(r"`(WAKELOOP\w*)`", row)}
    # What build.rs sets for the compiler.
    assert named - {"WAKELOOP_BUILD", "WAKELOOP_VERSION"} == listed


# -- the free-threading page -----------------------------------------------------------------------------------------

#: Rooms that are Rust without Python: the compiler checks what their threads share.
FREE_ROOMS = ("runtime", "reactor", "timer")
STATIC = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?static (\w+)\s*:", re.MULTILINE)
SYNC = re.compile(r"^unsafe impl(?:<[^{]*?>)? (?:Sync|Send) for (\w+)", re.MULTILINE)
#: A struct or an enum, with its fields.
FIELDS = re.compile(
    r"^( *)(?:pub(?:\([^)]*\))? )?(?:struct|enum) (\w+)[^;{(]*(\{.*?^\1\}|\(.*?\);)", re.MULTILINE | re.DOTALL
)
#: What changes behind a shared reference without a lock of its own.
CELL = re.compile(
    r"\b(?:Cell|RefCell|OnceCell|UnsafeCell|LoopCell|LoopQueue|ReadyQueue|Slot|LoopSlot|WeakList)\b"
)
SAFETY = re.compile(r"// SAFETY:[^\n]*(?:\n\s*//(?!/)[^\n]*)*")


def guarded_sources():
    """Yields the room, the path and the code of the files that the page is about, without their tests."""
    for path in (ROOT / "src").rglob("*.rs"):
        room = path.relative_to(ROOT / "src").parts[0].removesuffix(".rs")
        if room not in FREE_ROOMS and "model" not in path.stem:
            code, *_ = re.split(r"^#\[cfg\(test\)\]\s*mod ", path.read_text(), maxsplit=1, flags=re.MULTILINE)
            yield room, path, code


def shared_state(code):
    """Returns the names of every static, of every type with cells, and of every type that is Send or Sync by hand."""
    code = re.sub(r"//.*", "", code)
    cells = {name for _, name, fields in FIELDS.findall(code) if CELL.search(fields)}
    return {*STATIC.findall(code), *SYNC.findall(code), *cells}


def all_shared_state():
    """Returns (room, name) of all of that in the source."""
    return {(room, name) for room, _, code in guarded_sources() for name in shared_state(code)}


def listed_state():
    page = FREE_THREADING.read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE)
    return {(room, name) for room, names in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_static_and_every_sync_type_is_on_the_free_threading_page():
    assert all_shared_state() - listed_state() == set()


def test_everything_on_the_free_threading_page_is_in_the_source():
    assert listed_state() - all_shared_state() == set()


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("static NEW: AtomicU8 = AtomicU8::new(0);", {"NEW"}),
        ("    pub(crate) static INNER: Mutex<u8> = Mutex::new(0);", {"INNER"}),
        ("pub(crate) struct Named {\n    count: Cell<u32>,\n}", {"Named"}),
        ("struct Tuple(Slot);", {"Tuple"}),
        ("enum Choice {\n    One(RefCell<u8>),\n    Two,\n}", {"Choice"}),
        ("unsafe impl<T> Sync for Shared<T> {}", {"Shared"}),
        ("struct Plain {\n    count: u32, // no Cell\n}\nstatic_assert!(true);", set()),
    ],
)
def test_the_check_of_the_free_threading_page_finds_new_statics_and_cells(code, names):
    assert shared_state(code) == names


def test_the_gil_is_a_reason_only_where_the_free_threading_page_says_so():
    relies = {
        path.relative_to(ROOT).as_posix()
        for _, path, code in guarded_sources()
        if any("GIL" in comment for comment in SAFETY.findall(code))
    }
    section = FREE_THREADING.read_text().split("## Used with a GIL only")[1].split("\n## ")[0]
    assert relies == set(re.findall(r"`(src/[\w/]+\.rs)`", section))
