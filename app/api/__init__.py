"""The HTTP API: routes, schemas, admission, problem documents, pages."""
