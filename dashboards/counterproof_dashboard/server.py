"""The child process that serves the pages and ends with the process that started it.

`python -m counterproof_dashboard.server <streamlit arguments>`: standard input is a pipe from the parent. When its
other end closes, however the parent died, this process stops, so that no server is left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from streamlit.runtime.pages_manager import PagesManager
from streamlit.web import cli

GRACE_SECONDS = 5.0


def _stop_when_input_closes() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    timer = threading.Timer(GRACE_SECONDS, os._exit, args=(1,))
    timer.daemon = True
    timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until stopped. Exits the process."""
    # A folder called "pages" beside the entry script makes Streamlit's first session run a linked page alone, without
    # the entry script, until st.navigation was called once: a link opened first would show a page without its frame.
    PagesManager.uses_pages_directory = False
    threading.Thread(target=_stop_when_input_closes, daemon=True).start()
    cli.main(["run", *sys.argv[1:]], prog_name="streamlit")


if __name__ == "__main__":
    main()
