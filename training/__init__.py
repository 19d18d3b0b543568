"""Training: raw text in, a checkpoint directory out."""

import os

# Importing torch reads this. By default, OpenMP's threads spin for milliseconds while they wait for each other: two
# runs on two cores did 158 tokens a second each; with short spins they did 3,600 each (experiments/LOG.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
