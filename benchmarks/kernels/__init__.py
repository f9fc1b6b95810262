"""Speed of attention over packed pages, beside what one would use instead."""
