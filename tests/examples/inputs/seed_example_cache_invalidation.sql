-- tables
CREATE TABLE app.users (id INT PRIMARY KEY, email VARCHAR(64), name VARCHAR(32));
CREATE TABLE app.products (id INT PRIMARY KEY, category_id INT);
CREATE TABLE app.orders (id INT PRIMARY KEY, user_id INT);
CREATE TABLE app.inventory (id INT PRIMARY KEY, product_id INT, stock INT);
INSERT INTO app.users VALUES (1, 'alice@example.com', 'Alice');
-- changes
UPDATE app.users SET email = 'alice.new@example.com' WHERE id = 1;
INSERT INTO app.products VALUES (3, 9);
INSERT INTO app.orders VALUES (5, 1);
INSERT INTO app.inventory VALUES (8, 3, 100);
DELETE FROM app.products WHERE id = 3;
