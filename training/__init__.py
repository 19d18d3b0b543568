"""How it learns: raw text in, a checkpoint directory out."""

import os

# Read when torch is imported. OpenMP's threads wait for each other by spinning for milliseconds; two runs at a time on
# two cores then do 158 tokens a second each in place of 3,600 (4,600 to 5,600 alone, with either).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
