"""Data tags: which slice of which tensor each tile holds, followed from copy to product to store (docs/tags.md)."""

from analyses.tags.check import check_tags

__all__ = ["check_tags"]
