"""Imported when an interpreter of a suite's environment starts, by a .pth file: puts the loop under test in place.

Child processes of a test get it too, which is the point: what a library starts by itself runs on our loop as well.
"""

import os

loop = os.environ.get("WAKELOOP_SUITE_LOOP")
if loop:
    from substitution import substitute

    substitute(loop)
