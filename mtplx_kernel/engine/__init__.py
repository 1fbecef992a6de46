"""The engine: requests in, one owner thread that runs the model, results out."""
