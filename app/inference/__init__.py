"""Forward passes in processes of their own. Knows no queue and no HTTP; only `torch_backend` imports torch."""
