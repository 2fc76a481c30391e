"""The observers of loops: slow turns, tasks, the recorder, the watchdog, the exposition, the shared page, and `top`."""
