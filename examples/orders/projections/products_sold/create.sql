CREATE TABLE read_model.products_sold (
    sku TEXT PRIMARY KEY,
    sold BIGINT NOT NULL
);
