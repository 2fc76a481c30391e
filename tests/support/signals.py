"""The signal dispositions that the tests depend on.

A shell ignores SIGINT and SIGQUIT in what it starts in the background, and nohup ignores SIGHUP. Every child process
inherits that, and Python then installs no handler for SIGINT. Tests that interrupt a process would wait forever.
"""

import signal

DISPOSITIONS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGCHLD: signal.SIG_DFL,
}


def restore_dispositions():
    """Gives this process, and each child process that it starts, the dispositions of a program in the foreground.

    It does not replace a handler that this process has installed.
    """
    for number, disposition in DISPOSITIONS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, disposition)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DISPOSITIONS)
