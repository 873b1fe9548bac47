"""The part of the pipeline that knows Ray."""

import os

# A call that comes after `ray.shutdown`, from a thread of Ray Data's, must not start a Ray of its own.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
