-- tables: the page has none; these are the Introduction's orders
CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, customer_id INT, total DECIMAL(10,2), status VARCHAR(32));
-- changes
INSERT INTO shop.orders (customer_id, total, status) VALUES (1, 10.50, 'pending');
UPDATE shop.orders SET status = 'paid' WHERE id = 1;
DELETE FROM shop.orders WHERE id = 1;
