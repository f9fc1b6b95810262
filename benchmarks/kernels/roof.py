"""How fast memory is read: the roof of every arm."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from kvassay.cache.huge_pages import huge_page_memory


class Reader:
    """Reads a block at the speed of memory, by some threads; compiled for this machine."""

    def __init__(self, nbytes: int, threads: int) -> None:
        source = Path(__file__).with_name("read_bandwidth.cpp")
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name) / "read_bandwidth.so"
        command = ["g++", "-O3", "-march=native", "-funroll-loops", "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        self._function = ctypes.CDLL(str(library)).read_all
        self._function.argtypes, self._function.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
        memory = huge_page_memory(nbytes)
        self._block = torch.zeros(nbytes, dtype=torch.uint8) if memory is None else memory.zero_()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        part = self._block.numel() // self._threads
        starts = [self._block.data_ptr() + index * part for index in range(self._threads)]
        if self._threads == 1:
            self._function(starts[0], part // 8)
        else:
            list(self._pool.map(lambda start: self._function(start, part // 8), starts))
