"""Finding, fetching and loading models, and the BLAS they run on."""
