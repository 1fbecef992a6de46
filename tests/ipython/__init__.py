"""The IPython room: magics, options, completion, in shells, kernels and terminals."""
