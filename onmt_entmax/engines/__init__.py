"""Everything that is only faster: without it, results are the same up to rounding."""
