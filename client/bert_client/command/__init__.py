"""The command `bert`."""
