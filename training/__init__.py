"""How it learns: raw text in, a checkpoint directory out."""
