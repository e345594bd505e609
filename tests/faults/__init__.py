"""Kernels that hang, fault or cannot be launched, for the run on a GPU (`tools/gpu_faults.py`). No tool of the product reaches them."""
