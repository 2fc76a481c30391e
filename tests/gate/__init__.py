"""The gate that each change must pass: `make test`."""
