"""The table of tasks. Each task has one file, and one line here.

`/predict`, `/rerank` and `/tokenize` belong to the first task that takes texts and pairs.
"""

from app.tasks.fill_mask import FILL_MASK
from app.tasks.next_sentence import NEXT_SENTENCE
from app.tasks.sentiment import SENTIMENT

TASKS = (FILL_MASK, NEXT_SENTENCE, SENTIMENT)
