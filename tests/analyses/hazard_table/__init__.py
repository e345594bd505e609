"""A table of hazards: accepted programs, single edits, the rule and the line that must be named."""
