"""The `dask` command on wakeloop, for a scheduler and workers on separate machines.

    python dask_on_wakeloop.py scheduler
    python dask_on_wakeloop.py worker tcp://the-scheduler:8786

The process that `dask worker` starts for each worker imports this file again, and so has the loop as well.
"""

import wakeloop
from dask.__main__ import main

wakeloop.install()

if __name__ == "__main__":
    main()
