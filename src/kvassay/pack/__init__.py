"""Evidence packs: written atomically, read strictly, verified by hashing everything and judging again.

Nothing here imports torch: an auditor needs only the base install. `kvassay.pack.folder` and `.files` serve
any hashed result folder; `.writer`, `.reader` and `.verify` are the pack of an assessment.
"""
