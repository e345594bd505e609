"""Built-in workload contracts, one module each, defining CONTRACT."""
