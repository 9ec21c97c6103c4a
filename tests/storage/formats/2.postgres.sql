-- A database as the first release wrote it. Released formats never change.
CREATE TABLE df_meta (name VARCHAR(64) PRIMARY KEY, val BIGINT NOT NULL);
INSERT INTO df_meta VALUES ('format', 2);
INSERT INTO df_meta VALUES ('identity', 4242);
CREATE TABLE df_kv (
    ns TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL, val BYTEA NOT NULL,
    updated_at BIGINT NOT NULL, expires_at BIGINT, PRIMARY KEY (ns, key));
CREATE INDEX df_kv_expiry ON df_kv (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE df_log (
    seq BIGSERIAL PRIMARY KEY, ns TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL, val BYTEA NOT NULL,
    ts BIGINT NOT NULL);
CREATE INDEX df_log_key ON df_log (ns, key, seq);
CREATE TABLE df_slot (
    ns TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL,
    state BYTEA NOT NULL, updated_at BIGINT NOT NULL, PRIMARY KEY (ns, key));
CREATE TABLE df_queue (
    id BIGSERIAL PRIMARY KEY, ns TEXT COLLATE "C" NOT NULL, key TEXT COLLATE "C" NOT NULL, val BYTEA NOT NULL,
    ts BIGINT NOT NULL);
CREATE INDEX df_queue_key ON df_queue (ns, key, id);
INSERT INTO df_kv VALUES
    ('checkpoints', 'orders/shop::sink::kafka', '\x7B2276223A317D', 1760000000000, NULL),
    ('checkpoints', 'expired', '\x00', 1760000000000, 1760000000001);
INSERT INTO df_log VALUES (41, 'schemas', 'shop/db/t', '\x0001', 1760000000000);
INSERT INTO df_slot VALUES ('epochs', 'orders', 7, '\x64726976657231', 1760000000000);
INSERT INTO df_queue VALUES (99, 'journal', 'orders:dlq', '\xFF', 1760000000000);
SELECT setval('df_log_seq_seq', 41), setval('df_queue_id_seq', 99);
