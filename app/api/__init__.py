"""HTTP: routes, schemas, errors, admission, pages."""
