"""One operating system process: uvicorn, its protocol, signals, draining."""
