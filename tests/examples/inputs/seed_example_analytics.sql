-- tables: the page's sample output names the columns of orders, its script those of the others
CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, customer_id INT, total DECIMAL(10,2), status VARCHAR(32), channel VARCHAR(16), item_count INT) AUTO_INCREMENT = 98765;
CREATE TABLE shop.order_items (id INT AUTO_INCREMENT PRIMARY KEY, order_id INT, product_id INT, quantity INT, line_total DECIMAL(10,2));
CREATE TABLE shop.payments (id INT AUTO_INCREMENT PRIMARY KEY, order_id INT, method VARCHAR(16), amount DECIMAL(10,2));
CREATE TABLE shop.cart_events (id INT AUTO_INCREMENT PRIMARY KEY, cart VARCHAR(16));
-- changes
INSERT INTO shop.orders (customer_id, total, status, channel, item_count) VALUES (12345, 299.99, 'pending', 'mobile', 3);
INSERT INTO shop.orders (customer_id, total, status) VALUES (7, 1250.00, 'pending');
INSERT INTO shop.order_items (order_id, product_id, quantity, line_total) VALUES (98765, 4, 2, 59.98);
INSERT INTO shop.payments (order_id, method, amount) VALUES (98765, 'card', 299.99);
INSERT INTO shop.cart_events (cart) VALUES ('c-1');
UPDATE shop.orders SET status = 'shipped' WHERE id = 98765;
DELETE FROM shop.cart_events WHERE id = 1;
