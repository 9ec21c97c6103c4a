-- tables
CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, customer VARCHAR(64), total DECIMAL(10,2), status VARCHAR(32), created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE shop.outbox (id INT AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(64), aggregate_id VARCHAR(64), event_type VARCHAR(64), payload JSON) ENGINE=BLACKHOLE;
-- changes
BEGIN;
INSERT INTO shop.orders (customer, total, status) VALUES ('alice', 149.99, 'pending');
INSERT INTO shop.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('Order', LAST_INSERT_ID(), 'OrderCreated', '{"customer":"alice","total":149.99,"status":"pending"}');
COMMIT;
BEGIN;
INSERT INTO shop.orders (customer, total, status) VALUES ('mallory', 1.00, 'pending');
INSERT INTO shop.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('Order', LAST_INSERT_ID(), 'OrderCreated', '{}');
ROLLBACK;
INSERT INTO shop.outbox (aggregate_id, payload) VALUES ('2', JSON_OBJECT('no', 'type'));
