-- tables
CREATE TABLE products (id SERIAL PRIMARY KEY, name TEXT NOT NULL, sku TEXT UNIQUE, price DECIMAL(10,2), metadata JSONB, specifications JSONB, created_at TIMESTAMPTZ DEFAULT NOW(), updated_at TIMESTAMPTZ DEFAULT NOW());
CREATE TABLE product_variants (id SERIAL PRIMARY KEY, product_id INTEGER REFERENCES products(id), variant_name TEXT, attributes JSONB, pricing JSONB, created_at TIMESTAMPTZ DEFAULT NOW());
CREATE PUBLICATION products_pub FOR TABLE products, product_variants;
-- changes
INSERT INTO products (name, sku, price, metadata, specifications) VALUES ('Wireless Headphones', 'WH-1000', 299.99, '{"brand": "AudioTech", "category": "Electronics", "tags": ["wireless", "bluetooth", "noise-canceling"], "ratings": {"average": 4.5, "count": 1250}}', '{"battery_life_hours": 30, "driver_size_mm": 40, "frequency_response": {"min_hz": 20, "max_hz": 20000}, "connectivity": ["bluetooth", "aux"]}');
INSERT INTO product_variants (product_id, variant_name, attributes, pricing) VALUES (1, 'Midnight Black', '{"color": {"name": "Midnight Black", "hex": "#1a1a2e"}, "material": "Premium Plastic", "weight_grams": 250}', '{"base_price": 299.99, "regional": {"US": {"price": 299.99, "currency": "USD"}, "EU": {"price": 279.99, "currency": "EUR"}}, "discounts": [{"code": "SAVE20", "percent": 20, "expires": "2025-12-31"}]}');
INSERT INTO products (name, sku, price, metadata, specifications) VALUES ('Smart Watch', 'SW-200', 399.99, '{"brand": "TechWear", "tags": ["fitness", "smart"]}', '{"battery_days": 7, "water_resistant": true}');
