"""Ray, with two workers on this machine: `make test-ray`, since it takes half a minute to start."""

from __future__ import annotations

import os

import pytest

from kvassay.scale.executors.pull import PullExecutor
from kvassay.scale.status import read_status
from tests.scale.test_executors import job_of, merged_rows, nothing, plan

__all__ = ["plan"]

pytestmark = pytest.mark.skipif(
    os.environ.get("KVASSAY_TEST_RAY") != "1", reason="Ray starts slowly; make test-ray runs these"
)


@pytest.fixture(scope="module")
def ray():
    """A cluster of two CPUs in processes of this machine."""
    found = pytest.importorskip("ray")
    found.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield found
    found.shutdown()


def test_ray_gives_the_rows_and_verdicts_of_a_run_without_it(ray, plan, tmp_path) -> None:
    from kvassay.scale.executors.on_ray import RayExecutor

    job = job_of(plan, tmp_path / "ray")
    RayExecutor(None).run(job, nothing)
    assert read_status(job.store, plan.groups).complete
    quiet = job_of(plan, tmp_path / "quiet")
    PullExecutor().run(quiet, nothing)
    assert merged_rows(job, plan, tmp_path / "a") == merged_rows(quiet, plan, tmp_path / "b")


def test_a_ray_worker_that_dies_is_counted_and_its_item_done_again(ray, plan, tmp_path, monkeypatch) -> None:
    import kvassay.scale.executors.on_ray as on_ray

    job = job_of(plan, tmp_path / "ray")
    marker = str(tmp_path / "died")
    real = on_ray.run_task

    def dies_once(*arguments):
        import os as system

        if not system.path.exists(marker):
            open(marker, "w").close()
            system.kill(system.getpid(), 9)
        return real(*arguments)

    monkeypatch.setattr(on_ray, "run_task", dies_once)
    states: list[str] = []
    on_ray.RayExecutor(None).run(job, lambda _item, state: states.append(state.value))
    assert "failed" in states
    assert read_status(job.store, plan.groups).complete
