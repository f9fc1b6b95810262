"""Fuzzing of every parser: mutated valid files, each read in a bounded child process.

    python -m benchmarks.fuzz --minutes 10 --parser gguf
    python -m benchmarks.fuzz --minutes 2 --all --out out/fuzz

What a parser may do with any input is to accept it or to raise one of kvassay's named errors, within 500 MB and 2 s of
CPU. Anything else (another exception, a crash, more memory or time) is a finding, whose smallest input is kept.
"""
