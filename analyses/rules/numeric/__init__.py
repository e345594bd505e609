"""Rules of the family `numeric`."""
