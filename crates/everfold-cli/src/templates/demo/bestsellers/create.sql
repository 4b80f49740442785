CREATE TABLE read_model.bestsellers (
    sku TEXT PRIMARY KEY,
    in_carts BIGINT NOT NULL
);
