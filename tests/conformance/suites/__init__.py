"""Others' clients and test suites that ask a running endpoint, in an environment of their own."""
