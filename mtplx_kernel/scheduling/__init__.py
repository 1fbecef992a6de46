"""Scheduler policies: plain Python that says what runs next. No MLX here."""
