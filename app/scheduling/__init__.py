"""From a text to its answer: tokenization, the queue, batches. Knows no torch and no HTTP."""
