"""The paths. Each file is thin: schema in, engine, schema out."""
