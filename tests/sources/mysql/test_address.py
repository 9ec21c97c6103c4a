"""The DSN of a MySQL source: read right or refused, and never shown; TLS; any password."""

import ssl

import pytest

from airflow_provider_deltaforge.errors import AccessError, SpecError
from airflow_provider_deltaforge.sources.mysql.connection import connect
from airflow_provider_deltaforge.sources.mysql.dsn import parse_dsn
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import sql
from tests.sinks.certificates import certified
from tests.sources.mysql.stream_reading import source_of

HARD = [
    "p/w",
    "p@w",
    "p?w",
    "p#w",
    "p:w",
    "p%w",
    "1/w",
    "1?a=1",
    "p@h/w",
    "[w",
    "пар/оль",
    "w/@?#:",
]


@pytest.mark.parametrize("password", HARD)
def test_a_password_that_is_not_encoded_is_read_as_it_stands(password):
    dsn = parse_dsn(f"mysql://u:{password}@h.example:3307/shop")
    assert (dsn.host, dsn.port, dsn.user, dsn.database) == ("h.example", 3307, "u", "shop")
    assert dsn.password.get_secret_value() == password


@pytest.mark.parametrize(
    "text",
    [
        "mysql://u:s3c/ret",
        "mysql://u:s3c?ret=1",
        "mysql://u:s3c/ret@",
        "mysql://u:s3c@h:99999/ret",
        "mysql://u:s3c@h:0",
        "mysql://u:s3c@h/d#ret",
        "mysql:/u:s3c@h",
        "postgres://u:s3c@h",
        "mysql://u:s3c@h/d?Re t=1",
    ],
)
def test_what_is_no_address_is_refused_without_showing_it(text):
    for make in (parse_dsn, lambda text: MySqlSource(id="a", dsn=text)):
        with pytest.raises((SpecError, ValueError), match="dsn") as got:
            make(text)
        assert "s3c" not in str(got.value)
        assert "ret" not in str(got.value).replace("secret", "")


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "preferred"),
        ({"ssl_ca": "/ca"}, "verify_identity"),
        ({"ssl_cert": "/c"}, "verify_identity"),
        ({"ssl_ca": "/ca", "ssl_mode": "verify_ca"}, "verify_ca"),
        ({"ssl_mode": "required"}, "required"),
    ],
)
def test_tls_that_is_asked_for_is_verified(settings, mode):
    assert parse_dsn("mysql://h", **settings).ssl_mode == mode


@pytest.mark.parametrize("name", ["ssl_ca", "ssl_cert"])
def test_a_certificate_is_refused_where_nothing_is_encrypted(name):
    with pytest.raises(SpecError, match=rf"source\.{name}: means nothing with ssl_mode: disabled"):
        parse_dsn("mysql://h", ssl_mode="disabled", **{name: "/c"})


def test_a_server_that_is_given_up_before_its_heartbeat_is_refused():
    with pytest.raises(ValueError, match="must be longer than heartbeat_s"):
        MySqlSource(id="a", dsn="mysql://h", heartbeat_s=120)
    MySqlSource(id="a", dsn="mysql://h", heartbeat_s=120, read_timeout_s=300)


def test_a_key_without_its_certificate_and_a_file_that_is_not_there_are_named():
    with pytest.raises(SpecError, match=r"source\.ssl_key.*ssl_cert"):
        parse_dsn("mysql://h", ssl_key="/k")
    with pytest.raises(AccessError, match=r"ssl_ca: '/no/ca.pem' cannot be read"):
        parse_dsn("mysql://h", ssl_ca="/no/ca.pem").tls()


def test_a_certificate_is_shown_and_the_servers_is_verified(mysql_server, tmp_path):
    ca = mysql_server.attributes["ca"]
    files = {"ssl_cert": ca.replace("ca.pem", "client-cert.pem")}
    files["ssl_key"] = ca.replace("ca.pem", "client-key.pem")
    sql.execute(
        mysql_server,
        "CREATE USER IF NOT EXISTS mtls@'%' IDENTIFIED BY 'pw' REQUIRE X509",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO mtls@'%'",
    )
    dsn = f"mysql://mtls:pw@{mysql_server.host}:{mysql_server.port}/mysql"
    source_of(mysql_server, "mysql", dsn=dsn, ssl_ca=ca, ssl_mode="verify_ca", **files).head()
    with pytest.raises(AccessError, match="using password: YES"):
        source_of(mysql_server, "mysql", dsn=dsn, ssl_ca=ca, ssl_mode="verify_ca").head()
    # The server's own certificate names no host, and another authority has not signed it.
    with pytest.raises(AccessError, match=r"TLS failed.*verify_ca leaves the name"):
        source_of(mysql_server, "mysql", dsn=dsn, ssl_ca=ca, **files).head()
    other = str(certified(tmp_path).certificate)
    with pytest.raises(AccessError, match="TLS failed"):
        source_of(mysql_server, "mysql", ssl_ca=other, ssl_mode="verify_ca").head()
    with pytest.raises(AccessError, match="TLS failed"):
        source_of(mysql_server, "mysql", ssl_ca=other, ssl_mode="required").head()


@pytest.mark.parametrize("mode", ["preferred", "required"])
def test_a_server_that_is_not_verified_is_encrypted_to_and_costs_no_certificates(
    mysql_server, monkeypatch, mode
):
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", None)  # 25 ms, in each connection.

    connection = connect(parse_dsn(mysql_server.dsn("mysql"), ssl_mode=mode))

    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        assert cursor.fetchone()[1]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_password_may_hold_any_letter(kind, request):
    server = request.getfixturevalue(f"{kind}_server")
    password = "пароль-漢字/@:?#é"
    sql.execute(
        server,
        "DROP USER IF EXISTS letters@'%'",
        f"CREATE USER letters@'%' IDENTIFIED BY '{password}'",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO letters@'%'",
        *(["GRANT BINLOG MONITOR ON *.* TO letters@'%'"] if kind == "mariadb" else []),
    )
    dsn = f"mysql://letters:{password}@{server.host}:{server.port}/mysql"
    source_of(server, "mysql", dsn=dsn).head()
