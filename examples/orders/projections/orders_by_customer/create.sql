CREATE TABLE read_model.orders_by_customer (
    customer TEXT PRIMARY KEY,
    orders BIGINT NOT NULL,
    cents BIGINT NOT NULL
);
