-- tables
CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, email TEXT UNIQUE, metadata TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, user_id INTEGER NOT NULL, total REAL NOT NULL, status TEXT DEFAULT 'pending', created_at TEXT DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE order_items (id INTEGER PRIMARY KEY AUTOINCREMENT, order_id INTEGER NOT NULL);
-- changes
INSERT INTO users (name, email, metadata) VALUES ('Alice', 'alice@example.com', '{"role": "admin", "tags": ["vip"]}');
INSERT INTO orders (user_id, total, status) VALUES (1, 99.99, 'completed');
