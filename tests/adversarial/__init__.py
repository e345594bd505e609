"""The judge judged: kernels that cheat, entering at the worker's boundary, and what must catch each of them."""
