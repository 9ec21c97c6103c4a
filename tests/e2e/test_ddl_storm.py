"""Tables change under load, with and without column names in the log: nothing is mis-decoded."""

import pytest

from tests.e2e.ddl_storm import Storm

STATEMENTS = 24


@pytest.mark.parametrize(
    ("server", "full", "seed"),
    [
        ("mysql", False, 1),
        ("mariadb", True, 2),
        pytest.param("mysql", True, 3, marks=pytest.mark.long),
        pytest.param("mariadb", False, 4, marks=pytest.mark.long),
    ],
)
def test_a_storm_of_changes_is_read_by_the_columns_of_their_time(request, server, full, seed):
    storm = Storm(request.getfixturevalue(f"{server}_server"), seed, full=full)
    assert storm.rage(STATEMENTS) == []
