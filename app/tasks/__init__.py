"""The tasks: one file and one line of the table for each.

`/predict` and `/tokenize` belong to the first that takes texts and pairs.
"""

from app.tasks.fill_mask import FILL_MASK
from app.tasks.next_sentence import NEXT_SENTENCE
from app.tasks.sentiment import SENTIMENT

TASKS = (FILL_MASK, NEXT_SENTENCE, SENTIMENT)
