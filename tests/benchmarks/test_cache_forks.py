"""What the benchmark of forks counts, on a few short ones."""

from __future__ import annotations

import pytest

from benchmarks import cache_forks


@pytest.mark.parametrize("name", cache_forks.FORMATS)
def test_forks_share_all_pages_until_they_write_and_a_lookup_ends_on_a_page_bound(name) -> None:
    of_cache, of_lookup = (cache_forks.measure(name, how, 1, 300, 3) for how in cache_forks.HOW)
    for rows in (of_cache, of_lookup):
        assert [row.appended for row in rows] == list(cache_forks.APPENDED)
        assert rows[0].pages_nbytes == rows[0].copies_nbytes == 0
        assert rows[0].ratio == 1
        assert rows[-1].pages_nbytes >= rows[1].pages_nbytes > 0
    assert of_cache[1].copies_nbytes > 0
    assert all(row.copies_nbytes == 0 and row.ratio < 1.05 for row in of_lookup)
