"""Rules of the family `hardware`."""
