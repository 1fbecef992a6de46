"""MTP heads: what drafts for a target, read from its checkpoint or trained on its own text."""
