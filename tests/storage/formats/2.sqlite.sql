-- A database as the first release wrote it. Released formats never change.
CREATE TABLE df_meta (name VARCHAR(64) PRIMARY KEY, val BIGINT NOT NULL);
INSERT INTO df_meta VALUES ('format', 2);
INSERT INTO df_meta VALUES ('identity', 4242);
CREATE TABLE df_kv (
    ns TEXT NOT NULL, key TEXT NOT NULL, val BLOB NOT NULL,
    updated_at BIGINT NOT NULL, expires_at BIGINT, PRIMARY KEY (ns, key));
CREATE INDEX df_kv_expiry ON df_kv (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE df_log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, ns TEXT NOT NULL, key TEXT NOT NULL, val BLOB NOT NULL,
    ts BIGINT NOT NULL);
CREATE INDEX df_log_key ON df_log (ns, key, seq);
CREATE TABLE df_slot (
    ns TEXT NOT NULL, key TEXT NOT NULL, version BIGINT NOT NULL,
    state BLOB NOT NULL, updated_at BIGINT NOT NULL, PRIMARY KEY (ns, key));
CREATE TABLE df_queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT, ns TEXT NOT NULL, key TEXT NOT NULL, val BLOB NOT NULL,
    ts BIGINT NOT NULL);
CREATE INDEX df_queue_key ON df_queue (ns, key, id);
INSERT INTO df_kv VALUES
    ('checkpoints', 'orders/shop::sink::kafka', X'7B2276223A317D', 1760000000000, NULL),
    ('checkpoints', 'expired', X'00', 1760000000000, 1760000000001);
INSERT INTO df_log VALUES (41, 'schemas', 'shop/db/t', X'0001', 1760000000000);
INSERT INTO df_slot VALUES ('epochs', 'orders', 7, X'64726976657231', 1760000000000);
INSERT INTO df_queue VALUES (99, 'journal', 'orders:dlq', X'FF', 1760000000000);
