"""The engine as an endpoint that speaks OpenAI's API over HTTP."""
