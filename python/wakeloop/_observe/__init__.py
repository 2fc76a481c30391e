"""The observers of loops: slow turns, tasks, the recorder, the watchdog, the window, the exposition, and `top`."""
