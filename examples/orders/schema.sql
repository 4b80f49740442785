-- The application's own tables, as it has always had them.
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    customer text NOT NULL,
    sku text NOT NULL,
    cents bigint NOT NULL,
    status text NOT NULL DEFAULT 'placed'
);
CREATE SEQUENCE order_numbers;

-- What the consumer of the outbox makes of the events, and how far it has read them.
CREATE TABLE mails (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recipient text NOT NULL,
    subject text NOT NULL
);
CREATE TABLE consumers (
    name text PRIMARY KEY,
    position bigint NOT NULL
);
INSERT INTO consumers VALUES ('mailer', 0);
