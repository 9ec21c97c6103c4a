-- tables
CREATE TABLE public.orders (id INT PRIMARY KEY, doc JSONB);
CREATE TABLE public.order_items (id INT PRIMARY KEY, order_id INT);
INSERT INTO public.orders VALUES (1, '{"order_id": "abc", "customer": {"id": 1, "address": {"city": "Berlin", "zip": "10115"}}, "tags": ["vip"], "meta": {}, "none": []}');
-- changes
UPDATE public.orders SET doc = '{"a": {"b": {"c": {"d": {"e": 1}}}}}' WHERE id = 1;
INSERT INTO public.order_items VALUES (1, 1);
BEGIN;
SELECT pg_logical_emit_message(true, 'order_outbox_eu', '{"aggregate_type":"Order","aggregate_id":"42","event_type":"OrderCreated","trace_id":"t-1","data":{"total":99.99,"lines":{"n":2}}}');
COMMIT;
