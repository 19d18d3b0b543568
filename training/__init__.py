"""Training: raw text in, a checkpoint directory out."""

import os

# Read when torch is imported. By default, OpenMP's threads spin for milliseconds while they wait for each other. Two
# runs on two cores then did 158 tokens a second each; with short spins they did 3,600 each (LOG.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
