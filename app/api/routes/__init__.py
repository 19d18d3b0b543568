"""The paths: tasks, Hugging Face's shapes of them, operations, pages."""
