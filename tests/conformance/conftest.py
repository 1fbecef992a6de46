"""The suites of others run in an environment of their own, by `make conformance`."""

collect_ignore = ["suites"]
