"""Loaded by every Python process whose path has this folder: SuperNodes poll often, so that tests wait less.

Flower's SuperNode sleeps three seconds between two polls, and has no option for that.
"""

import sys
import time

LONGEST_SLEEP = 0.4

if any(word.endswith(("flower-supernode", "fedpohcs.deploy.supernode")) for word in sys.orig_argv[:3]):
    _sleep = time.sleep
    time.sleep = lambda seconds: _sleep(min(seconds, LONGEST_SLEEP))
