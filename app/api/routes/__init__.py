"""The service's own paths: tasks, operations, pages."""
