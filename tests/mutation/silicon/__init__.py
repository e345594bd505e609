"""Mutants on the silicon: a seeded sample of refuted and accepted mutants, launched on a GPU under a watchdog.

For developers only: `tools/gpu_mutants.py` is the command. Nothing of the server can reach this package, which lowers
programs that the verifier rejects.
"""
