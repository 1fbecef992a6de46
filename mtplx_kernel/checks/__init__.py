"""Checks that a user runs on the loaded model: are the drafts exact here, and which depth pays."""
