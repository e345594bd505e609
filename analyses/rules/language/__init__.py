"""Rules of the family `language`."""
