"""Forward passes in separate processes. Knows no queue and no HTTP; only `torch_backend` imports torch."""
