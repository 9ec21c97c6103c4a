-- tables
CREATE TABLE shop.orders (id INT PRIMARY KEY, total DECIMAL(10,2));
CREATE TABLE shop.orders_outbox (id INT AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(64), aggregate_id VARCHAR(64), event_type VARCHAR(64), payload JSON) ENGINE=BLACKHOLE;
CREATE TABLE shop.payments_outbox (id INT AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(64), aggregate_id VARCHAR(64), event_type VARCHAR(64), payload JSON);
-- changes
BEGIN;
INSERT INTO shop.orders (id, total) VALUES (42, 99.99);
INSERT INTO shop.orders_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('Order', '42', 'OrderCreated', '{"total": 99.99}');
COMMIT;
INSERT INTO shop.payments_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('Payment', '7', 'PaymentReceived', '{"amount": 99.99}');
DELETE FROM shop.payments_outbox;
