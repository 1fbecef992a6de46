"""The decode step: propose, verify, accept, commit."""
