-- tables
CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, customer_email VARCHAR(64), total DECIMAL(10,2), status VARCHAR(32), deleted_at DATETIME);
CREATE TABLE shop.order_items (id INT AUTO_INCREMENT PRIMARY KEY, order_id INT, deleted_at DATETIME);
CREATE TABLE shop.audit_log (id INT AUTO_INCREMENT PRIMARY KEY, level VARCHAR(16), message VARCHAR(64));
-- changes
INSERT INTO shop.orders (customer_email, total, status) VALUES ('alice@example.com', 99.99, 'pending');
INSERT INTO shop.orders (customer_email, total, status) VALUES ('test@test.local', 50.00, 'pending');
INSERT INTO shop.orders (customer_email, total, status, deleted_at) VALUES ('bob@example.com', 75.00, 'pending', NOW());
INSERT INTO shop.audit_log (level, message) VALUES ('info', 'User logged in');
INSERT INTO shop.audit_log (level, message) VALUES ('error', 'Payment failed');
