"""Requests to coverage rankings: `python jobs/rerank.py CONFIG.yaml [key.path=value ...]`, the same as `lancer run`.

On a cluster: `ray job submit --working-dir . -- python jobs/rerank.py CONFIG.yaml output=s3://bucket/run`.
"""

import sys

from lancer.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
