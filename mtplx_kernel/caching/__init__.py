"""The caches a row's tokens live in, with rollback by length or by reference."""
