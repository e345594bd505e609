"""Rules of the family `derive`."""
