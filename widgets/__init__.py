"""Views of a running engine; installed as `mtplx_kernel.widgets`."""
