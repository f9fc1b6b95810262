"""A store on an S3-compatible server, which runs in this process."""

from __future__ import annotations

import pytest

from kvassay.scale.cell import items_of
from kvassay.scale.executors.base import Job
from kvassay.scale.executors.pull import PullExecutor
from kvassay.scale.matrix import load_matrix
from kvassay.scale.merge import merge_group
from kvassay.scale.planning import plan_matrix
from kvassay.scale.plans import write_plan
from kvassay.scale.query import query
from kvassay.scale.status import read_status
from kvassay.scale.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket():
    """Options with which fsspec reaches a bucket named `store`."""
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "test", "secret": "test", "endpoint_url": f"http://{host}:{port}"}
    Store("s3://store/x", **options).file_system.mkdir("store")
    yield options
    server.stop()


def test_the_first_of_two_writers_stays(bucket) -> None:
    store = Store("s3://store/first", **bucket)
    assert store.put_new("a.json", b"1")
    assert not store.put_new("a.json", b"2")
    assert store.read("a.json") == b"1"
    assert store.read("b.json") is None


def test_a_matrix_on_s3_gives_the_results_of_a_folder(bucket, matrix_file, tmp_path) -> None:
    plan = plan_matrix(load_matrix(matrix_file()), lambda _line: None)
    digests = []
    for store in (Store("s3://store/matrix", **bucket), Store(str(tmp_path / "store"))):
        job = Job(store, write_plan(store, plan), items_of(plan), 1, 30.0)
        PullExecutor().run(job, lambda _item, _state: None)
        status = read_status(store, plan.groups)
        assert status.complete
        digests.append(status.results_sha256)
    assert digests[0] == digests[1]
    remote = Store("s3://store/matrix", **bucket)
    assert merge_group(remote, plan.groups[0], tmp_path / "pack").verdicts.formats
    assert query("SELECT count(*) FROM tokens", remote, plan.groups).rows == [(20 * 11 * 4,)]
