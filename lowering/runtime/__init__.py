"""Device runtime: the only part of lowering that touches a GPU. Every module imports without one."""
