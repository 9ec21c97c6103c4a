-- tables
CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, customer_id INT, total DECIMAL(10,2), status VARCHAR(32));
CREATE TABLE shop.order_items (id INT AUTO_INCREMENT PRIMARY KEY, order_id INT, sku VARCHAR(16));
-- changes
INSERT INTO shop.orders (customer_id, total, status) VALUES (1, 1500.00, 'pending');
INSERT INTO shop.order_items (order_id, sku) VALUES (1, 'lamp');
INSERT INTO shop.orders (customer_id, total, status) VALUES (2, 20.00, 'pending');
DELETE FROM shop.orders WHERE id = 2;
