"""Verifications over REST."""

from tests.control.held_rows import KEYS, hold, key, tamper
from tests.waiting import wait_for


def test_a_verification_runs_in_the_server(client, server, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    tamper(hold(server.store, tmp_path))
    with client("admin") as admin:
        place = "/pipelines/orders/verify"
        assert admin.get(place).json() == {"running": None, "results": []}
        begun = admin.post(place, json={"tables": ["script.rows"]})
        assert begun.status_code == 202, begun.text
        number = begun.json()["id"]

        def ended():
            return admin.get(f"{place}/{number}").json()["state"] != "running"

        wait_for("the verification", ended)
        [found] = admin.get(place).json()["results"]
        assert (found["id"], found["verdict"], found["differences"]) == (number, "different", 3)
        assert found["sinks"][0]["tables"][0]["examples"]["missing"] == [key(KEYS[0])]
        assert "deltaforge_verify_differences{" in admin.get("/metrics").text
        repair = admin.post(f"{place}/{number}/repair")
        assert (repair.status_code, repair.json()["code"]) == (409, "NOT_NOW")
        assert "start 'orders' first" in repair.json()["message"]
        assert admin.post(f"{place}/none/repair").status_code == 404
        unknown = admin.post(place, json={"sinks": ["none"]})
        assert (unknown.status_code, unknown.json()["code"]) == (400, "INVALID_REQUEST")
        assert admin.get(f"{place}/none").status_code == 404
        assert admin.post("/pipelines/none/verify", json={}).status_code == 404
    with client("read") as reader:
        assert reader.post(f"{place}/{number}/repair").status_code == 403
