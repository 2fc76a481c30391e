"""The gate that each change must pass (`make test`), and the long parts that run at night (`make nightly`)."""
