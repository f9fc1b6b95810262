"""From the move of a slider to the drawn charts of the lab's bench, and what of it the server takes.

    python -m benchmarks.lab_latency [--moves 30]

Arrays of 1,024 tokens by 128 channels. `server` is one run of the codec, attention and figures in this process; `page`
is what a real Chromium measured from the input event to the frame after its charts were replaced, HTTP included. Each
row has its median and its 90th percentile over the moves; the first move of each setting is left out. A table, no test:
the goal is 150 ms on two idle cores.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    "int8, one scale a row": {},
    "the same, one element x40": {"outlier": 40},
    "int4 K by channel group, V by group, window 32": {
        "key_bits": 4,
        "value_bits": 4,
        "key_scales": "channel-group",
        "value_scales": "group",
        "recent": 32,
    },
    "int3, rotated": {"key_bits": 3, "value_bits": 3, "rotate": "true"},
}
SIZE = {"tokens": 1024, "width": 128}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=30)
    moves = parser.parse_args().moves
    print(f"{'setting':48} {'median ms':>10} {'p90 ms':>8} {'CPU ms':>8}   n = {moves}")
    for name, settings in SETTINGS.items():
        wall, cpu = server_milliseconds(settings, moves)
        shown = f"{statistics.median(wall):10.1f} {_p90(wall):8.1f} {statistics.median(cpu):8.1f}"
        print(f"{name:48} {shown}   server", flush=True)
    for name, page in page_milliseconds(moves):
        print(f"{name:48} {statistics.median(page):10.1f} {_p90(page):8.1f} {'':8}   page", flush=True)


def server_milliseconds(settings: dict[str, Any], moves: int) -> tuple[list[float], list[float]]:
    """Wall and CPU time of each run; seeds differ, so that no array is taken from a store."""
    from kvassay.lab.bench import run_bench
    from kvassay.lab.bench_settings import BenchSettings

    wall, cpu = [], []
    for move in range(moves + 1):
        chosen = BenchSettings.model_validate({**SIZE, **settings, "seed": move % 8})
        run_bench(chosen, None) if move == 0 else None
        begin, used = time.perf_counter(), time.process_time()
        run_bench(chosen, None)
        if move:
            wall.append(1000 * (time.perf_counter() - begin))
            cpu.append(1000 * (time.process_time() - used))
    return wall, cpu


def page_milliseconds(moves: int) -> Iterator[tuple[str, list[float]]]:
    """What the page itself says of each move of the outlier's slider, in a real browser."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        print("no Chromium: the page was not measured")
        return
    from playwright.sync_api import sync_playwright

    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        for name, settings in SETTINGS.items():
            query = "&".join(f"{key}={value}" for key, value in {**SIZE, **settings}.items())
            page.goto("about:blank")
            page.goto(f"{address}#bytes?{query}")
            page.wait_for_selector("#results[data-latency-ms]")
            page.focus("#outlier")
            found = []
            for move in range(moves + 1):
                page.evaluate("() => delete document.querySelector('#results').dataset.latencyMs")
                page.keyboard.press("ArrowRight" if move % 2 == 0 else "ArrowLeft")
                page.wait_for_selector("#results[data-latency-ms]")
                if move:
                    found.append(float(page.get_attribute("#results", "data-latency-ms") or "nan"))
            yield name, found
        browser.close()


@contextmanager
def served() -> Iterator[str]:
    """The real command in a process of its own, as a user has it."""
    command = [sys.executable, "-m", "kvassay", "lab"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        try:
            yield lab.stdout.readline().split()[1]
        finally:
            lab.terminate()


def _p90(figures: list[float]) -> float:
    return sorted(figures)[int(0.9 * (len(figures) - 1))]


if __name__ == "__main__":
    main()
