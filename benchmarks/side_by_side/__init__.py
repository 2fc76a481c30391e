"""The parts of ``make demo``: real services on asyncio, uvloop and wakeloop, side by side."""
