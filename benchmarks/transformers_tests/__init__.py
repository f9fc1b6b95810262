"""Run transformers' own cache and generation tests with kvassay's QuantizedCache where they make a DynamicCache.

None of transformers' tests is here: the folder with them is an argument (see docs/design/transformers-tests.md).
`substitution` puts the cache in, `plugin` is loaded into the test run and records it, `checkout` makes a folder of an
older version importable, `verdict` compares a run with the plain one, `__main__` runs and writes the table.
"""
