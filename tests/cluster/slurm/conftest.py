import pytest

from cluster import Cluster, missing_programs


@pytest.fixture(scope="session")
def cluster():
    """One Slurm for all tests. Tests that take nodes away give them back."""
    if missing := missing_programs():
        pytest.skip(f"Slurm is not installed (./dev test does it): no {', '.join(missing)}")
    with Cluster() as running:
        yield running
