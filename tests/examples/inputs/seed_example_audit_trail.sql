-- tables
CREATE TABLE public.users (id INT PRIMARY KEY, email TEXT, name TEXT, password_hash TEXT);
CREATE TABLE public.user_profiles (id INT PRIMARY KEY, user_id INT, date_of_birth DATE);
CREATE TABLE public.payment_methods (id INT PRIMARY KEY, user_id INT, card_number TEXT, cvv TEXT);
CREATE TABLE public.transactions (id INT PRIMARY KEY, amount NUMERIC(12,2));
CREATE TABLE public.roles (id INT PRIMARY KEY, name TEXT);
CREATE TABLE public.permissions (id INT PRIMARY KEY, name TEXT);
CREATE TABLE public.user_roles (user_id INT, role_id INT, PRIMARY KEY (user_id, role_id));
CREATE PUBLICATION audit_pub FOR TABLE public.users, public.user_profiles, public.payment_methods, public.transactions, public.roles, public.permissions, public.user_roles WITH (publish = 'insert, update, delete');
ALTER TABLE public.users REPLICA IDENTITY FULL;
ALTER TABLE public.user_profiles REPLICA IDENTITY FULL;
ALTER TABLE public.payment_methods REPLICA IDENTITY FULL;
ALTER TABLE public.transactions REPLICA IDENTITY FULL;
-- changes
INSERT INTO public.users VALUES (42, 'alice@old-domain.com', 'Alice Smith', 'x1');
UPDATE public.users SET email = 'alice@new-domain.com' WHERE id = 42;
INSERT INTO public.user_profiles VALUES (1, 42, '1990-05-17');
INSERT INTO public.payment_methods VALUES (1, 42, '4111111111111111', '123');
INSERT INTO public.transactions VALUES (1, 99.90);
INSERT INTO public.roles VALUES (1, 'admin');
INSERT INTO public.permissions VALUES (1, 'read');
INSERT INTO public.user_roles VALUES (42, 1);
DELETE FROM public.payment_methods WHERE id = 1;
