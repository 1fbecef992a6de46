"""Tests of the project itself: packaging, set-up, rooms, pages, notebooks."""
