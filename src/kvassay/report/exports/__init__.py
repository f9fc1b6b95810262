"""A pack in the forms that other tools read: JUnit XML, GitHub annotations, a model card, CSV and Parquet.

Every one of them says less than the pack, and none of them is evidence: they carry the root digest that names it.
"""
