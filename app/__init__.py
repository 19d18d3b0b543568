"""How questions are answered: HTTP in front, dynamic batches behind, `model` at the end."""
