"""Pyright in strict mode over programs, and over the Python blocks of pages.

basedpyright is pyright with a Node.js of its own, from the package index. Its strict mode is pyright's: the rules that
only basedpyright has are off.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.support import pages

#: Packages that are not typed, or not strictly: what comes from them has unknown types.
UNTYPED = {"asyncpg", "dask", "distributed", "django", "grpc", "hypercorn", "jupyter_client", "nest_asyncio", "redis"}
#: Pages that break a rule on purpose.
RULES = {
    # Toolkits need what asyncio keeps private.
    "docs/guides/toolkits.md": {"reportPrivateUsage": "none"},
    # It asks several loops whether they do what the types say.
    "docs/guides/uvloop.md": {"reportUnnecessaryIsInstance": "none"},
    # It looks at what an import does.
    "docs/reference/installed.md": {"reportUnusedImport": "none"},
}


def write_blocks(folder):
    """Writes the Python blocks of every page into a folder of the page, and returns these folders by the pages' names.

    A block is called like its file, or by its line. Those for a newer Python are left out.
    """
    folders = {}
    for page in pages.PAGES:
        name = pages.name(page)
        for block in pages.blocks(page):
            since = tuple(map(int, block.marks.get("since", "3.0").split(".")))
            if block.language == "python" and sys.version_info >= since:
                folders[name] = folder / re.sub(r"\W", "_", name.removesuffix(".md"))
                file = folders[name] / block.marks.get("file", f"line_{block.line}.py")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.code)
    return folders


def check(folder, roots):
    """Checks folders, each with the rules that differ for it, and returns the errors of each.

    A file that imports a package which is not installed here is left out.
    """
    package = [str(pages.ROOT / "python")]
    config = {
        "typeCheckingMode": "strict",
        "include": [str(root) for root in roots],
        "executionEnvironments": [{"root": str(root), "extraPaths": package, **roots[root]} for root in roots],
    }
    file = folder / "pyrightconfig.json"
    file.write_text(json.dumps(config))
    line = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", file, "--pythonpath", sys.executable]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.stdout.lstrip().startswith("{"), done.stdout + done.stderr
    by_file = defaultdict(list)
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            by_file[Path(found["file"])].append(found)
    errors = {root: [] for root in roots}
    for path, found in by_file.items():
        root = next(root for root in roots if path.is_relative_to(root))
        if any(_is_missing_package(each) for each in found):
            continue
        imports = set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE))
        for each in found:
            rule = each.get("rule", "syntax")
            if imports & UNTYPED and (rule.startswith("reportUnknown") or rule == "reportMissingTypeStubs"):
                continue
            line = each["range"]["start"]["line"] + 1
            errors[root].append(f"{path.relative_to(root)}:{line}: {each['message']} ({rule})")
    return errors


def _is_missing_package(found):
    return found.get("rule") == "reportMissingImports" and not re.search(r'"wakeloop\b', found["message"])
