"""Tasks as far as they need no tokenizer: what item N of a seed asks, its slices, and when an answer is right.

The workload writes its items from this and the judge checks rows against it, so that a row cannot claim another item, a
copy of one, another slice, or another result than its own answer shows.
"""
