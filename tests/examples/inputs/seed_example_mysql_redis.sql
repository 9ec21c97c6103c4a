-- tables
CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, email VARCHAR(64), total DECIMAL(10,2), status VARCHAR(32));
-- changes
INSERT INTO shop.orders (email, total, status) VALUES ('alice@example.com', 99.99, 'pending');
INSERT INTO shop.orders (email, total, status) VALUES (NULL, 1.00, 'pending');
