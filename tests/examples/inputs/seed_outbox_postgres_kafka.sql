-- tables
CREATE TABLE orders (id INT PRIMARY KEY, total NUMERIC(10,2));
-- changes
BEGIN;
INSERT INTO orders (id, total) VALUES (42, 99.99);
SELECT pg_logical_emit_message(true, 'outbox', '{"aggregate_type":"Order","aggregate_id":"42","event_type":"OrderCreated","payload":{"total":99.99}}');
COMMIT;
BEGIN;
SELECT pg_logical_emit_message(true, 'outbox', '{"aggregate_type":"Order","aggregate_id":"43","event_type":"OrderCreated","payload":{}}');
ROLLBACK;
SELECT pg_logical_emit_message(true, 'elsewhere', '{"aggregate_type":"Order","event_type":"OrderCreated"}');
