-- tables
CREATE TABLE shop.orders (id INT PRIMARY KEY, customer_id INT, total DECIMAL(10,2));
CREATE TABLE shop.order_items (id INT PRIMARY KEY, customer_id INT);
INSERT INTO shop.orders VALUES (1, 7, 5.00);
-- changes
INSERT INTO shop.orders VALUES (2, 8, 6.00);
DELETE FROM shop.orders WHERE id = 1;
INSERT INTO shop.order_items VALUES (1, 8);
