"""How it learns: raw text in, a checkpoint directory out."""

import os

# Read when torch is imported. By default, OpenMP's threads spin for milliseconds while they wait for each other. Two
# runs at a time on two cores did 158 tokens a second each that way, and 3,600 each with short spins (LOG.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
