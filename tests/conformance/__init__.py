"""What others' clients and tests make of the endpoint, and what many or odd requests do to it."""
